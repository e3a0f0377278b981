"""Where a key set comes from: a URL, a file, or the issuer's OpenID Connect discovery. Returns its bytes, judges none.

Fetches never follow a redirect (who controls an open redirect would control the keys) and never read more than 1 MiB.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path

import aiohttp
from yarl import URL

from gateway import config
from gateway.identity.keys import KeySetUnusable

Source = Callable[[], Awaitable[bytes]]
"""Returns the bytes of a JWK Set, or raises KeySetUnusable."""

# Key sets hold a handful of keys, 1-20 KB; what is larger is no key set.
MAX_DOCUMENT_BYTES = 2**20


def source_of(issuer: config.Issuer, session: aiohttp.ClientSession) -> Source:
    """Return the source that an issuer's entry names: `jwks` as URL or path, else discovery from the issuer."""
    if issuer.jwks is None:
        return partial(_discover, session, issuer.issuer)
    if issuer.jwks.startswith(("http://", "https://")):
        return partial(_download, session, issuer.jwks)
    return partial(_read, Path(issuer.jwks))


async def _discover(session: aiohttp.ClientSession, issuer: str) -> bytes:
    """Fetch the provider's metadata, then the key set that it names (OpenID Connect Discovery 1.0 section 4)."""
    where = f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
    document = await _download(session, where)
    try:
        metadata = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise KeySetUnusable(f"{_shown(where)} is not JSON") from error
    if not isinstance(metadata, dict) or metadata.get("issuer") != issuer:
        raise KeySetUnusable(f"{_shown(where)} is not the metadata of exactly this issuer (section 4.3)")
    jwks_uri = metadata.get("jwks_uri")
    if not isinstance(jwks_uri, str) or not _trustworthy(jwks_uri, issuer):
        raise KeySetUnusable(f"{_shown(where)}: jwks_uri must be an https URL, or of the issuer's own origin")
    return await _download(session, jwks_uri)


def _trustworthy(jwks_uri: str, issuer: str) -> bool:
    """Whether keys from there are as good as the issuer's word: by TLS, or from where the word itself came."""
    try:
        url = URL(jwks_uri)
        return bool(url.host) and (url.scheme == "https" or url.origin() == URL(issuer).origin())
    except ValueError:
        return False


async def _download(session: aiohttp.ClientSession, url: str) -> bytes:
    try:
        async with session.get(url, allow_redirects=False, headers={"Accept": "application/json"}) as response:
            if response.status != HTTPStatus.OK:
                raise KeySetUnusable(f"{_shown(url)} answered {response.status}; expected 200")
            document = bytearray()
            async for chunk in response.content.iter_any():
                document += chunk
                if len(document) > MAX_DOCUMENT_BYTES:
                    raise KeySetUnusable(f"{_shown(url)} is larger than 1 MiB")
            return bytes(document)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a URL that cannot be one
        # Not the error's whole text: it may hold the URL with its secrets.
        why = getattr(error, "strerror", None) or type(error).__name__
        raise KeySetUnusable(f"{_shown(url)} cannot be fetched: {why}") from error


def _shown(url: str) -> str:
    """Return a URL for the log: without user, password and query, which may be secrets."""
    try:
        return str(URL(url).with_user(None).with_query(None))
    except ValueError:
        return "the configured URL"


async def _read(path: Path) -> bytes:
    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)

    try:
        document = await asyncio.to_thread(read)
    except OSError as error:
        raise KeySetUnusable(f"{path} cannot be read: {error.strerror}") from error
    if len(document) > MAX_DOCUMENT_BYTES:
        raise KeySetUnusable(f"{path} is larger than 1 MiB")
    return document
