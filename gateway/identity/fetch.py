"""One HTTP request to an identity provider -> its answer, within bounds; or a sentence for the log, without secrets.

No redirect is followed: who controls an open redirect would control the keys, or get our credentials. Bodies are taken
as they come, never unpacked, so that a few bytes cannot become many.
"""

import ssl
from dataclasses import dataclass
from typing import Literal

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL


class Unreachable(Exception):
    """There was no whole answer. The message can be logged as it is."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer, whatever its status."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    *,
    max_bytes: int,
    method: Literal["GET", "POST"] = "GET",
    form: dict[str, str] | None = None,
    authorization: str | None = None,
    accept: str = "application/json",
    tls: ssl.SSLContext | bool = True,
) -> Fetched:
    """Make the request. The caller limits its time.

    A POST whose pooled connection turns out to be stale is sent once more, as aiohttp does only with a GET: what is
    asked of identity providers here may be asked twice.

    Raises:
        Unreachable: no connection, no HTTP, a broken or too large answer, or a URL that is none.
    """
    headers = CIMultiDict({"Accept": accept, "Accept-Encoding": "identity"})
    if authorization is not None:
        headers["Authorization"] = authorization
    for last in (False, True):
        try:
            async with session.request(
                method, url, data=form, headers=headers, ssl=tls, allow_redirects=False, auto_decompress=False
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > max_bytes:
                        raise Unreachable(f"{shown(url)} is larger than {_size(max_bytes)}")
                return Fetched(response.status, response.headers, bytes(body))
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if last or isinstance(error, aiohttp.ClientConnectorError):
                raise Unreachable(f"{shown(url)} cannot be fetched: {_why(error)}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a URL that cannot be one
            raise Unreachable(f"{shown(url)} cannot be fetched: {_why(error)}") from error
    raise AssertionError("unreachable: the second try returns or raises")


def shown(url: str) -> str:
    """Return a URL for the log: without user, password and query, which may be secrets."""
    try:
        return str(URL(url).with_user(None).with_query(None))
    except ValueError:
        return "the configured URL"


def _why(error: Exception) -> str:
    """Return what happened; not the error's whole text, which may hold the URL with its secrets."""
    return getattr(error, "strerror", None) or type(error).__name__


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count // 2**10} KiB"
