"""One keep-alive HTTP/1.1 connection to a replica: request bytes out, the answer's head, body and end to a receiver.

Carries one exchange at a time and belongs to it from `send` until the answer's last byte. It never retries, never
times out and never buffers a body: bytes go to the receiver inside the read that brought them.
"""

import asyncio
from typing import Protocol, cast

import httptools

from gateway.outbox import Outbox
from gateway.relay.endings import Break

# Head fields past these are not an engine's: parsing ends with a broken answer instead of a full memory.
MAX_HEADERS = 200
MAX_HEAD_BYTES = 64 * 1024


class Receiver(Protocol):
    """Who gets the answer. Called in the order head, body…, end; `broken` may come at any time and is the last."""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the status and the header fields; names in lower case, of repeated fields the last."""

    def body(self, data: bytes) -> None:
        """Take the next bytes of the body: all that one read brought."""

    def end(self) -> None:
        """The body is complete, as its framing says."""

    def broken(self, reason: Break) -> None:
        """The answer cannot be completed."""


class Connection(asyncio.Protocol):
    """A connection in use by one exchange, or idle since `idle_since` (monotonic seconds)."""

    __deletable__ = ("_parser",)  # compiled too
    __slots__ = (
        "_body",
        "_head_bytes",
        "_headers",
        "_outbox",
        "_parser",
        "_receiver",
        "_request",
        "_status",
        "_until_close",
        "answered",
        "idle_since",
        "on_body",
        "transport",
    )

    def __init__(self, outbox: Outbox) -> None:
        self.transport: asyncio.Transport | None = None
        self._outbox = outbox
        self._request = b""
        self.answered = False  # whether any byte of the current answer came
        self.idle_since = 0.0
        self._receiver: Receiver | None = None
        self._body: list[bytes] = []
        self.on_body = self._body.append  # what the parser calls with a piece, until the read that brought it is parsed
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._until_close = False

    def send(self, request: bytes, receiver: Receiver) -> None:
        """Send a whole request, and give its answer to `receiver`."""
        self._receiver = receiver
        self.answered = False
        self._new_message()
        if self.transport is None:
            self._break("reset")
        else:
            self._request = request
            self._outbox.add(self)

    def flush(self) -> None:
        """Hand the request over to the transport."""
        request, self._request = self._request, b""
        if request and self.transport is not None:
            self.transport.write(request)

    def abort(self) -> None:
        """Close at once, whatever is under way; the receiver hears no more."""
        self._receiver = None
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    def pause(self) -> None:
        """Read no more until `resume`: the client cannot keep up, so the engine must wait."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.transport is not None:
            self.transport.resume_reading()

    @property
    def reusable(self) -> bool:
        """Whether another exchange may use this connection: open, with its last request sent and answered in full.

        An engine may refuse a large body before it came: what then follows it could wait for ever to be read.
        """
        if self.transport is None or self.transport.is_closing() or self._request:
            return False
        return self._receiver is None and not self.transport.get_write_buffer_size()

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class

    def data_received(self, data: bytes) -> None:
        """Parse one read, and hand the body bytes in it over as one piece."""
        if self._receiver is None:  # nothing was asked: this connection is of no use any more
            self.abort()
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._hand_over()
            self._break("garbage")
            return
        if self._body:
            self._hand_over()

    def eof_received(self) -> bool:
        """Close with the peer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: well if the answer's end is the connection's end, else broken."""
        self.transport = None
        del self._parser  # it calls us, and we it: nothing of a closed connection should wait for the collector
        if self._receiver is None:
            return
        if self._until_close and exc is None:
            self._finish()
        else:
            self._break("reset")

    # From the parser.

    def on_message_begin(self) -> None:
        """Refuse an answer that nobody asked for: bytes behind the last answer's end."""
        if self._receiver is None:
            raise ValueError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head."""
        self._head_bytes += len(name) + len(value)
        if len(self._headers) >= MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Hand the head over, unless it is an interim one (RFC 9110, 15.2)."""
        self._status = self._parser.get_status_code()
        if self._status >= 200 and self._receiver is not None:  # noqa: PLR2004 the first final status
            self._until_close = b"content-length" not in self._headers and b"transfer-encoding" not in self._headers
            self._receiver.head(self._status, self._headers)

    def on_message_complete(self) -> None:
        """End the exchange; after an interim answer the real one begins."""
        if self._status < 200:  # noqa: PLR2004 as above
            self._new_message()
            return
        self._hand_over()
        if not self._parser.should_keep_alive() and self.transport is not None:
            self.transport.close()
        self._finish()

    # Within.

    def _new_message(self) -> None:
        self._status = 0
        self._headers = {}
        self._head_bytes = 0
        self._until_close = False

    def _hand_over(self) -> None:
        body = self._body
        if body:
            data = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            if self._receiver is not None:
                self._receiver.body(data)

    def _finish(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.end()

    def _break(self, reason: Break) -> None:
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.broken(reason)
