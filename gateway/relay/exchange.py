"""One attempt at one replica: the request out, its answer judged, then relayed to the client byte for byte.

`begin` ends when it is known what the client will get: a stream's first event is here, an answer that is not streamed
is whole, or the attempt failed. Until then nothing is sent to the client, so another replica may still be tried.
`relay` feeds the client inside the engine's reads and ends with the last byte. Leaving the block gives the engine's
connection back, or closes it where the answer is not at its end: an engine stops generating when it is hung up on.
"""

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web

from gateway.clock import Clock
from gateway.config import Timeouts
from gateway.errors import BadRequest
from gateway.relay.client import Answer, ClientConnection, Header
from gateway.relay.connection import Connection
from gateway.relay.endings import Break, error_event
from gateway.relay.failure import Failure, judge
from gateway.relay.reading import Reading
from gateway.relay.upstream import Upstream
from gateway.routing.replica import Replica

# What is held of a stream that has no event yet (comments, a very long first event) before it is relayed regardless.
MAX_HELD_BYTES = 64 * 1024

_STREAM_HEADERS: tuple[Header, ...] = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))


class Exchange:
    """A request to `replica` and its answer; a context manager that owns its connection.

    `reading` holds what the answer said; `first_byte_at` is in the clock's monotonic seconds.
    """

    def __init__(
        self, upstream: Upstream, replica: Replica, timeouts: Timeouts, *, reading: Reading, clock: Clock
    ) -> None:
        self.reading = reading
        self.first_byte_at: float | None = None
        self._upstream = upstream
        self._replica = replica
        self._timeouts = timeouts
        self._streamed = reading.call.stream
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._status = 0
        self._content_type = ""
        self._encoded = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._answer: Answer | None = None
        self._client: ClientConnection | None = None
        self._client_slow = False
        self._stage: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._last_byte_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._client is not None:
            self._client.flow = None
        if self._connection is not None:
            self.client_resumed()
            self._upstream.give_back(self._replica, self._connection)

    async def begin(self, request: bytes) -> Failure | BadRequest | None:
        """Send `request` and wait until the answer can be judged. None: it can be relayed."""
        connection = self._upstream.take_idle(self._replica)
        if connection is not None:
            await self._ask(connection, request)
            # The engine closed an idle connection while we wrote to it: that says nothing about the replica.
            if self.reading.broken_by != "reset" or connection.answered:
                return self._verdict()
            self.reading.broken_by = self._connection = None
        try:
            connection = self._connection = await self._upstream.connect(
                self._replica, timeout_s=self._timeouts.connect
            )
        except (OSError, TimeoutError):
            return Failure("connect")
        if not self._over():  # it may have been cut meanwhile
            await self._ask(connection, request)
        return self._verdict()

    @property
    def asked(self) -> bool:
        """Whether the engine may have seen the request."""
        return self._connection is not None

    def deliver(self, answer: Answer, headers: tuple[Header, ...]) -> None:
        """Send an answer that is not streamed to the client."""
        answer.whole(self._status, (("Content-Type", self._content_type), *headers), b"".join(self._held))

    async def relay(self, request: web.BaseRequest, answer: Answer, headers: tuple[Header, ...]) -> None:
        """Send a stream to the client, to its last byte."""
        answer.begin(self._status, (("Content-Type", self._content_type), *_STREAM_HEADERS, *headers))
        answer.send(b"".join(self._held))
        if not self._over():
            self._answer = answer
            self._stage = self._loop.create_future()
            self._watch_client(request)
            await self._stage
        if not self.reading.whole:
            answer.send(error_event(self.reading.broken_by or "unfinished", at_boundary=self.reading.at_boundary))
        answer.finish()

    def cut(self, reason: Break) -> None:
        """Hang up on the engine; the client gets a visible end."""
        if self._connection is not None:
            self._connection.abort()
        self.broken(reason)

    # From the engine's connection.

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the answer's status and content type; no other field of an engine reaches the client."""
        self._status = status
        self._content_type = headers.get(b"content-type", b"").decode("latin-1")
        self._encoded = headers.get(b"content-encoding", b"identity") != b"identity"

    def body(self, data: bytes) -> None:
        """Relay the next bytes, or hold them while the answer cannot be judged yet."""
        self._last_byte_at = self._loop.time()
        if not self._streams():
            if not self._held and not self._streamed:
                self._arm(self._last_byte_at + self._timeouts.idle)
            self._hold(data)
            return
        self._pass_on(self.reading.feed(data))
        if self._answer is None and (self.reading.began or self._held_bytes > MAX_HELD_BYTES):
            self._first_byte()
            self._next_stage()

    def end(self) -> None:
        """The answer is complete as HTTP; whether it is as an answer, `reading` knows."""
        self.reading.ended = True
        self._first_byte()
        if self._streams():
            self._pass_on(self.reading.end())
        elif self._status == 200:  # noqa: PLR2004 the one status whose body is an answer
            self.reading.take_whole(b"".join(self._held))
        self._next_stage()

    def broken(self, reason: Break) -> None:
        """The answer will not be completed."""
        self.reading.broken_by = reason
        if self._streams():
            self._pass_on(self.reading.end())
        self._next_stage()

    # From the client's connection.

    def client_paused(self) -> None:
        """Let the engine wait while the client does not keep up."""
        self._client_slow = True
        if self._connection is not None:
            self._connection.pause()

    def client_resumed(self) -> None:
        """Let the engine go on."""
        if self._client_slow and self._connection is not None:
            self._client_slow = False
            self._last_byte_at = self._loop.time()
            self._connection.resume()

    # Within.

    async def _ask(self, connection: Connection, request: bytes) -> None:
        self._connection = connection
        self._stage = self._loop.create_future()
        connection.send(request, self)
        self._arm(self._loop.time() + (self._timeouts.first_byte if self._streamed else self._timeouts.answer))
        await self._stage

    def _verdict(self) -> Failure | BadRequest | None:
        reading = self.reading
        if reading.broken_by is not None and not reading.began:
            return Failure(reading.broken_by)
        if self._status != 200:  # noqa: PLR2004 the seeds know no other success
            return judge(self._status, b"".join(self._held))
        asked_for = self._streams() if self._streamed else reading.is_answer
        # We accept no encoding: what comes encoded all the same can be neither counted nor labelled for the client.
        if not asked_for or self._encoded or (self._over() and not reading.began):
            return Failure("malformed")
        return None

    def _pass_on(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.send(data)
        else:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)

    def _streams(self) -> bool:
        return self._streamed and self._status == 200 and self._content_type.startswith("text/event-stream")  # noqa: PLR2004

    def _over(self) -> bool:
        return self.reading.ended or self.reading.broken_by is not None

    def _first_byte(self) -> None:
        if self.first_byte_at is None:
            self.first_byte_at = self._clock.monotonic()
            self._arm(self._last_byte_at + self._timeouts.idle)

    def _next_stage(self) -> None:
        if not self._stage.done():
            self._stage.set_result(None)

    def _watch_client(self, request: web.BaseRequest) -> None:
        client = request.protocol
        if isinstance(client, ClientConnection):
            self._client = client
            client.flow = self
            if client.writing_paused:
                self.client_paused()

    def _arm(self, deadline: float) -> None:
        """Let the answer be cut at `deadline` (loop time) unless it moves on before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_time)

    def _check_time(self) -> None:
        """Runs once per time limit, not per event: where bytes came since, it moves itself to the next due time."""
        if self._over():
            return
        now = self._loop.time()
        due = (now if self._client_slow else self._last_byte_at) + self._timeouts.idle
        began = self.first_byte_at is not None or (self._held and not self._streamed)
        if began and now < due:
            self._arm(due)
            return
        self.cut("timeout")
