"""Where a key set comes from: a URL, a file, or the issuer's OpenID Connect discovery. Returns its bytes, judges none.

Never more than 1 MiB.
"""

import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from gateway import config
from gateway.identity.authorities import Authorities
from gateway.identity.fetch import Unreachable, fetch, shown
from gateway.identity.keys import KeySetUnusable
from gateway.identity.local_file import LocalFile


class Document(NamedTuple):
    """The bytes of a JWK Set, and for how long their source calls them fresh, if it says so."""

    content: bytes
    fresh_for_s: float | None = None


Source = Callable[[], Awaitable[Document]]
"""Returns a key set's document, or raises KeySetUnusable."""

# Key sets hold a handful of keys, 1-20 KB; what is larger is no key set.
MAX_DOCUMENT_BYTES = 2**20
# Nine digits are 31 years: enough to be bounded by `refresh`, few enough to be parsed.
# Kubernetes has key sets as what RFC 7517 section 8.5.1 registers, and as nothing else (406).
_ACCEPT = "application/json, application/jwk-set+json, */*;q=0.1"

_MAX_AGE = re.compile(r'max-age="?(\d{1,9})"?')
_SECONDS = re.compile(r"\d{1,9}")


def source_of(issuer: config.Issuer, session: aiohttp.ClientSession) -> Source:
    """Return the source that an issuer's entry names: `jwks` as URL or path, else discovery from the issuer."""
    web = _Web(issuer, session)
    if issuer.jwks is None:
        return partial(_discover, web, issuer.issuer)
    if issuer.jwks.startswith(("http://", "https://")):
        return partial(web.download, issuer.jwks)
    return partial(_read, LocalFile(Path(issuer.jwks), max_bytes=MAX_DOCUMENT_BYTES))


class _Web:
    """Downloads of one issuer's documents."""

    def __init__(self, issuer: config.Issuer, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._authorities = Authorities(issuer.ca)
        self._token = (
            None if issuer.jwks_token is None else LocalFile(Path(issuer.jwks_token), max_bytes=MAX_DOCUMENT_BYTES)
        )
        self._home = issuer.jwks or issuer.issuer

    async def download(self, url: str) -> Document:
        try:
            fetched = await fetch(
                self._session,
                url,
                max_bytes=MAX_DOCUMENT_BYTES,
                authorization=await self._authorization(url),
                accept=_ACCEPT,
                tls=self._authorities.context(),
            )
        except Unreachable as error:
            raise KeySetUnusable(str(error)) from error
        if fetched.status != HTTPStatus.OK:
            raise KeySetUnusable(f"{shown(url)} answered {fetched.status}; expected 200")
        return Document(fetched.body, fresh_for_s(fetched.headers))

    async def _authorization(self, url: str) -> str | None:
        """Return the token of `jwks_token`, read each time: Kubernetes writes a new one every hour.

        It goes only where the config says, not wherever a discovery document points.
        """
        if self._token is None or not _same_origin(url, self._home):
            return None
        return f"Bearer {(await _read(self._token)).content.decode('ascii', 'replace').strip()}"


async def _discover(web: _Web, issuer: str) -> Document:
    """Fetch the provider's metadata, then the key set that it names (OpenID Connect Discovery 1.0 section 4)."""
    where = f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
    try:
        metadata = json.loads((await web.download(where)).content)
    except (ValueError, RecursionError) as error:
        raise KeySetUnusable(f"{shown(where)} is not JSON") from error
    if not isinstance(metadata, dict) or metadata.get("issuer") != issuer:
        raise KeySetUnusable(f"{shown(where)} is not the metadata of exactly this issuer (section 4.3)")
    jwks_uri = metadata.get("jwks_uri")
    if not isinstance(jwks_uri, str) or not _trustworthy(jwks_uri, issuer):
        raise KeySetUnusable(f"{shown(where)}: jwks_uri must be an https URL, or of the issuer's own origin")
    return await web.download(jwks_uri)


def _trustworthy(jwks_uri: str, issuer: str) -> bool:
    """Whether keys from there are as good as the issuer's word: by TLS, or from where the word itself came."""
    try:
        url = URL(jwks_uri)
    except ValueError:
        return False
    return bool(url.host) and (url.scheme == "https" or _same_origin(jwks_uri, issuer))


def _same_origin(one: str, other: str) -> bool:
    try:
        return URL(one).origin() == URL(other).origin()
    except ValueError:
        return False


def fresh_for_s(headers: CIMultiDictProxy[str]) -> float | None:
    """Return for how long an answer says that it is fresh (RFC 9111 section 5.2.2); None where it does not say."""
    directives = [one.strip().lower() for value in headers.getall("Cache-Control", ()) for one in value.split(",")]
    ages = [int(found[1]) for one in directives if (found := _MAX_AGE.fullmatch(one))]
    if any(one.partition("=")[0] in {"no-cache", "no-store"} for one in directives):
        ages.append(0)
    if not ages:
        return None
    age = headers.get("Age", "0").strip()
    return float(max(0, min(ages) - (int(age) if _SECONDS.fullmatch(age) else 0)))


async def _read(file: LocalFile) -> Document:
    try:
        document = await file.read()
    except OSError as error:
        raise KeySetUnusable(f"{file.path} cannot be read: {error.strerror}") from error
    if len(document) > MAX_DOCUMENT_BYTES:
        raise KeySetUnusable(f"{file.path} is larger than 1 MiB")
    return Document(document)
