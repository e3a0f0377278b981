"""The client's end of an answer: bytes go to its transport as they are, in one write each.

aiohttp parses requests and keeps connections; head and framing of an answer are written here, because its
`StreamResponse` costs more than all else a call needs. Never waits: backpressure is a callback to whoever feeds us.
"""

from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import HttpVersion10, web

# Fields of a head as they are sent: lines, each with its line end. Names and values are ours or an engine's, never a
# client's: nothing in them can end a line.
Fields = str

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Flow(Protocol):
    """Who feeds an answer, and must wait while its client cannot keep up."""

    def client_paused(self) -> None:
        """The client's transport holds as much as it should."""

    def client_resumed(self) -> None:
        """The client reads again."""


class ClientConnection(web.RequestHandler):
    """aiohttp's connection, which also tells the current answer's `flow` when the client stops or starts to keep up.

    `malformed` answers what could not be parsed as a request.
    """

    __slots__ = ("_malformed", "flow")

    def __init__(
        self, manager: web.Server, malformed: Callable[[web.BaseRequest], web.StreamResponse], **kwargs: Any
    ) -> None:
        super().__init__(manager, **kwargs)
        self.flow: Flow | None = None
        self._malformed = malformed

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002 as are the next two: the base class's signature
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Called by aiohttp for a request it cannot parse; its own answer would be plain text with the input in it."""
        return self._malformed(request)

    def close(self) -> None:
        """Called by aiohttp to end a connection after its current answer; an idle one it would leave open, but deaf."""
        idle = self._waiter is not None and not self._waiter.done()
        super().close()
        if idle and self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        """Called by the transport at its high-water mark."""
        super().pause_writing()
        if self.flow is not None:
            self.flow.client_paused()

    def resume_writing(self) -> None:
        """Called by the transport at its low-water mark."""
        super().resume_writing()
        if self.flow is not None:
            self.flow.client_resumed()


class Answer(web.StreamResponse):
    """One answer: `whole`, or `begin`, `send`… and `finish`; `abort` where it must not look whole.

    aiohttp asks a finished answer only for `keep_alive`; it finds nothing left to send. Once the client is gone every
    write is dropped: its handler is about to be cancelled.
    """

    def __init__(self, request: web.BaseRequest, *, now: float) -> None:
        # The base class is not initialised: its header map and status are never used, and cost as much as a write.
        self._connection = request.protocol
        self._bodiless = request.method == "HEAD"
        self._keep_alive = request.keep_alive
        self._chunked = request.version > HttpVersion10
        self._now = now
        self._unsent = b""
        self.sent_status = 0

    @property
    def keep_alive(self) -> bool | None:
        """Whether the client may send another request on this connection."""
        return self._keep_alive

    def close_after(self) -> None:
        """Let this answer be its connection's last."""
        self._keep_alive = False

    def whole(self, status: int, fields: Fields, body: bytes) -> None:
        """Send a complete answer in one write."""
        head = self._head(status, fields, f"Content-Length: {len(body)}\r\n")
        self._write(head if self._bodiless else head + body)

    def begin(self, status: int, fields: Fields) -> None:
        """Begin a stream. The head goes out with the first bytes."""
        if not self._chunked:
            self._keep_alive = False  # HTTP/1.0 has no other end of a stream than the connection's
        self._unsent = self._head(status, fields, "Transfer-Encoding: chunked\r\n" if self._chunked else "")

    def send(self, data: bytes) -> None:
        """Send the next bytes of a stream."""
        if not data:  # an empty chunk would be the last
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        self._write(self._with_head(framed) if self._unsent else framed)

    def finish(self) -> None:
        """End a stream cleanly."""
        self._write(self._with_head(b"0\r\n\r\n" if self._chunked else b""))

    def abort(self) -> None:
        """Cut the connection: the client must not take what it has for a whole answer."""
        self._keep_alive = False
        if self._connection.transport is not None:
            self._connection.transport.abort()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to prepare."""

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 the base class's signature
        """Let the next answer wait until the client took most of this one: who pipelines must read, or fills memory."""
        if self._connection.writing_paused:
            await self._connection._drain_helper()  # noqa: SLF001 aiohttp's own responses wait by it too

    def _with_head(self, data: bytes) -> bytes:
        head, self._unsent = self._unsent, b""
        return head + data

    def _head(self, status: int, fields: Fields, framing: str) -> bytes:
        self.sent_status = status
        connection = "" if self._keep_alive else "Connection: close\r\n"
        if self._keep_alive and not self._chunked:
            connection = "Connection: keep-alive\r\n"
        return f"{_opening(status, int(self._now))}{fields}{connection}{framing}\r\n".encode("latin-1")

    def _write(self, data: bytes) -> None:
        transport = self._connection.transport
        if transport is not None:
            transport.write(data)


def lines(headers: Mapping[str, str]) -> Fields:
    """Return headers as fields."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@lru_cache(maxsize=32)
def _opening(status: int, now: int) -> str:
    """Return the first lines of a head: formatting this second's `Date` takes as long as all others together."""
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\nDate: {formatdate(now, usegmt=True)}\r\n"
