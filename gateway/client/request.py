"""One request: its head as it came, and its body once that is here. Filled by its connection, read by the pipeline."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.client.room import Room
from gateway.errors import InvalidJson, NoRoom, RequestTooLarge

if TYPE_CHECKING:
    from gateway.client.connection import ClientConnection

# What is kept of a body that nobody has asked for: one read. A stranger cannot make us buffer more.
UNASKED_BYTES = 64 * 1024
# When there may be room again: engines take a while with what is large.
_ROOM_AFTER_S = 5


class Request:
    """What one client asks.

    `target` is as in the request line. `fields` has names in lower case; of a repeated field the values as one list.
    `complete`: the whole body is here, or will never be of interest.
    """

    __slots__ = (
        "_arrived", "_body", "_broken", "_crowded", "_limit", "_room", "_size", "_taken", "complete", "connection",
        "fields", "http_1_0", "keep_alive", "method", "target",
    )  # fmt: skip

    def __init__(
        self,
        connection: "ClientConnection",
        method: bytes,
        target: bytes,
        *,
        fields: Mapping[bytes, bytes],
        keep_alive: bool,
        http_1_0: bool = False,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.fields = fields
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.complete = False
        self._body: list[bytes] = []
        self._size = 0
        self._limit: int | None = None  # of the body, once somebody reads it
        self._broken = False
        self._room: Room | None = None  # of the body, once it counts
        self._taken = 0
        self._crowded = False  # there was not enough
        self._arrived: asyncio.Future[None] | None = None

    def text(self, name: bytes) -> str | None:
        """Return the value of a field; bytes beyond ASCII stay recognisable as such."""
        value = self.fields.get(name)
        return None if value is None else value.decode("ascii", "surrogateescape")

    def body_at_hand(self, *, limit: int) -> bytes | None:
        """Return the whole body if it came with the head, as small ones do; else None. It takes no room to speak of."""
        return self._handed_over() if self.complete and self._size <= limit else None

    async def body(self, *, limit: int, timeout_s: float, room: Room) -> bytes:
        """Return the whole body, waiting for it. It takes `room` until `leave_room`.

        Raises:
            RequestTooLarge: it is declared or found to be larger than `limit` bytes.
            NoRoom: there is no room for what is declared, or for what came.
            InvalidJson: it did not arrive within `timeout_s`, or its framing is broken.
        """
        self._limit = limit
        size = max(int(self.fields.get(b"content-length", b"0")), self._size)
        if size > limit:
            raise _too_large(limit)
        self._room = room
        if not room.has(size) or not self._take(self._size):
            raise _crowded()
        if not (self.complete or self._broken):
            self._ask_for_the_rest()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._end_of_body()
            except TimeoutError:
                raise InvalidJson(f"The body did not arrive within {timeout_s:g} s.") from None
        if self._crowded:
            raise _crowded()
        if self._size > limit:
            raise _too_large(limit)
        if self._broken:
            raise InvalidJson("The body is badly framed: its chunks are not what their sizes say.")
        return self._handed_over()

    async def discard(self, *, timeout_s: float) -> None:
        """Let the rest of the body come and go, so that the client can finish sending and read its answer."""
        self._body.clear()
        self._limit = 0
        self.connection.read_on()
        try:
            async with asyncio.timeout(timeout_s):
                await self._end_of_body()
        except TimeoutError:
            return

    def leave_room(self) -> None:
        """Let others have the room that the body took: its call has ended."""
        if self._room is not None:
            self._room.give_back(self._taken)
            self._room = None

    # From the connection.

    @property
    def held_back(self) -> bool:
        """Whether so much of a body is here that nobody asked for that the client has to wait with the rest."""
        return self._limit is None and self._size > UNASKED_BYTES

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body; what is beyond the limit is not kept."""
        self._size += len(data)
        if self._limit is None or (self._size <= self._limit and self._take(len(data))):
            self._body.append(data)
        elif self._limit:
            self._tell()

    def end(self, *, broken: bool = False) -> None:
        """Take the end of the body: it is complete, or its framing is broken and nothing more will come."""
        self.complete, self._broken = not broken, broken
        self._tell()

    def _take(self, size: int) -> bool:
        """Take room for the next bytes; where there is none, leave all of it at once to those who come after."""
        if self._room is None or not self._room.take(size):
            self._crowded = True
            self._body.clear()
            self.leave_room()
            return False
        self._taken += size
        return True

    def _handed_over(self) -> bytes:
        """Return the body, and keep none of it: a call may last for minutes."""
        pieces, self._body = self._body, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _ask_for_the_rest(self) -> None:
        """Tell a client that waits for leave to send its body; HTTP/1.0 knows no interim answers (RFC 9110, 10.1.1)."""
        if self.fields.get(b"expect", b"").lower() == b"100-continue" and not self.http_1_0 and not self._size:
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.connection.read_on()

    async def _end_of_body(self) -> None:
        if not (self.complete or self._broken):
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived

    def _tell(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {limit} bytes; shorten the messages or send smaller images.")


def _crowded() -> NoRoom:
    return NoRoom(
        "Too many large bodies are under way here at once; send it again after the time in Retry-After.",
        retry_after_s=_ROOM_AFTER_S,
    )
