"""The answer to one request: bytes go to the client's transport as they are, in one write each.

Never waits: backpressure is a callback to whoever feeds us. Once the client is gone every write is dropped: its handler
is about to be cancelled.
"""

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from gateway.client.request import Request

# Fields of a head as they are sent: lines, each with its line end. Names and values are ours or an engine's, never a
# client's: nothing in them can end a line.
Fields = str

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Answer:
    """One answer: `whole`, or `begin`, `send`… and `finish`; `abort` where it must not look whole.

    `sent_status` is 0 until a head is out or on its way. `keep_alive`: whether another request may come behind it.
    """

    __slots__ = ("_bodiless", "_chunked", "_now", "_unsent", "connection", "keep_alive", "sent_status")

    def __init__(self, request: Request, *, now: float) -> None:
        self.connection = request.connection
        self.keep_alive = request.keep_alive
        self.sent_status = 0
        self._bodiless = request.method == b"HEAD"
        self._chunked = not request.http_1_0
        self._now = now
        self._unsent = b""

    def close_after(self) -> None:
        """Let this answer be its connection's last."""
        self.keep_alive = False

    def whole(self, status: int, fields: Fields, body: bytes) -> None:
        """Send a complete answer in one write."""
        head = self._head(status, fields, f"Content-Length: {len(body)}\r\n")
        self.connection.write(head if self._bodiless else head + body)

    def begin(self, status: int, fields: Fields) -> None:
        """Begin a stream. The head goes out with the first bytes."""
        if not self._chunked:
            self.keep_alive = False  # HTTP/1.0 has no other end of a stream than the connection's
        self._unsent = self._head(status, fields, "Transfer-Encoding: chunked\r\n" if self._chunked else "")

    def send(self, data: bytes) -> None:
        """Send the next bytes of a stream."""
        if not data:  # an empty chunk would be the last
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        self.connection.write(self._with_head(framed) if self._unsent else framed)

    def finish(self) -> None:
        """End a stream cleanly."""
        self.connection.write(self._with_head(b"0\r\n\r\n" if self._chunked else b""))

    def abort(self) -> None:
        """Cut the connection: the client must not take what it has for a whole answer."""
        self.keep_alive = False
        self.connection.abort()

    def _with_head(self, data: bytes) -> bytes:
        head, self._unsent = self._unsent, b""
        return head + data

    def _head(self, status: int, fields: Fields, framing: str) -> bytes:
        self.sent_status = status
        if self.connection.closing:
            self.keep_alive = False
        connection = "" if self.keep_alive else "Connection: close\r\n"
        if self.keep_alive and not self._chunked:
            connection = "Connection: keep-alive\r\n"
        return f"{_opening(status, int(self._now))}{fields}{connection}{framing}\r\n".encode("latin-1")


def lines(headers: Mapping[str, str]) -> Fields:
    """Return headers as fields."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@lru_cache(maxsize=32)
def _opening(status: int, now: int) -> str:
    """Return the first lines of a head: formatting this second's `Date` takes as long as all others together."""
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\nDate: {formatdate(now, usegmt=True)}\r\n"
