"""The body of a request, read within a size and a time; nothing is read of a stranger's."""

import asyncio

from aiohttp import HttpVersion10, web

from gateway.errors import InvalidJson, RequestTooLarge


def body_at_hand(request: web.BaseRequest, *, limit: int) -> bytes | None:
    """Return the whole body if it came with the head, as small ones do; else None."""
    content = request.content
    return content.read_nowait() if content.is_eof() and content.total_bytes <= limit else None


async def read_body(request: web.BaseRequest, *, limit: int, timeout_s: float) -> bytes:
    """Return the whole body, waiting for it.

    Raises:
        RequestTooLarge: it is declared or found to be larger than `limit` bytes.
        InvalidJson: it did not arrive within `timeout_s`, or its framing is broken.
    """
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    if _waits_for_leave(request) and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, limit)
    except TimeoutError:
        raise InvalidJson(f"The body did not arrive within {timeout_s:g} s.") from None
    except (web.RequestPayloadError, web.PayloadAccessError, ValueError) as error:
        raise InvalidJson("The body is cut short or badly framed.") from error


def _waits_for_leave(request: web.BaseRequest) -> bool:
    """Whether the client sends the body only once told to; HTTP/1.0 knows no interim answers (RFC 9110, 10.1.1)."""
    return request.headers.get("Expect", "").lower() == "100-continue" and request.version > HttpVersion10


async def _read(request: web.BaseRequest, limit: int) -> bytes:
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {limit} bytes; shorten the messages or send smaller images.")
