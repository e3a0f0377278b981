"""One attempt at one replica: the request out, its answer judged, then relayed to the client byte for byte.

`begin` ends when it is known what the client will get: a stream's first event is here, an answer that is not streamed
is whole, or the attempt failed. Until then nothing is sent to the client, so another replica may still be tried.
`relay` feeds the client inside the engine's reads and ends with the last byte. Leaving the block gives the engine's
connection back, or closes it where the answer is not at its end: an engine stops generating when it is hung up on.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gateway.client.answer import Answer, Fields
from gateway.client.connection import ClientConnection
from gateway.clock import Clock
from gateway.config import Timeouts
from gateway.errors import BadRequest
from gateway.relay.connection import Connection
from gateway.relay.endings import Break, error_event
from gateway.relay.failure import CALLERS_FAULT, FULL, Failure, Reason, judge, judge_event
from gateway.relay.keep_alive import STREAM_FIELDS, KeepAlive
from gateway.relay.outcome import BrokenBy
from gateway.relay.retry_after import wait_of
from gateway.relay.stream import Stream
from gateway.relay.upstream import Upstream
from gateway.relay.whole import Whole
from gateway.routing.replica import Replica

# What is held of a stream that has no event yet (comments, a very long first event) before it is relayed regardless,
# and of an engine's error.
MAX_HELD_BYTES = 64 * 1024
# What an answer that is not streamed may hold: far more than any context with all its logprobs, far less than memory.
MAX_WHOLE_BYTES = 256 * 2**20
# How long an engine is read on that was held up by a client which has gone: what it had told after 50 ms in all cases.
HEAR_OUT_S = 0.2

_OK = 200  # the seeds know no other success


class Exchange:
    """A request to `replica` and its answer; a context manager that owns its connection.

    `reading` takes in what the answer says. `elsewhere` says whether another replica could be asked instead.
    `first_byte_at`, and `deadline_at` at which the client gives up, are in the clock's monotonic seconds. `held_up`:
    the engine had to wait for its client. `left_unread`: the client has gone before it took what was there for it.
    """

    first_byte_at: float | None = None
    left_unread = False
    held_up = False
    # What is not known at the start stands here: an exchange is made for each call, and most of this is never set.
    _asked_at = 0.0
    _last_byte_at = 0.0
    _connection: Connection | None = None
    _connecting: asyncio.Timeout | None = None
    _status = 0
    _content_type = ""
    _encoded = False
    _retry_after_s: float | None = None
    _held_bytes = 0
    _stream: Stream | None = None  # once the head says that the answer is one
    _answer: Answer | None = None
    _client: ClientConnection | None = None
    _client_slow = False
    _stage: asyncio.Future[None] | None = None

    def __init__(
        self,
        upstream: Upstream,
        replica: Replica,
        timeouts: Timeouts,
        *,
        reading: Stream | Whole,
        clock: Clock,
        deadline_at: float | None,
        keep_alive: KeepAlive | None,
        elsewhere: Callable[[], bool],
    ) -> None:
        self.reading = reading
        self.replica = replica
        self._upstream = upstream
        self._timeouts = timeouts
        self._clock = clock
        self._deadline_at = deadline_at
        self._keep_alive = keep_alive
        self._elsewhere = elsewhere
        self._loop = upstream.loop
        self._held: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._upstream.forget(self)
        if self._client is not None:
            self._client.flow = None
        if self._connection is not None:
            self.client_resumed()
            self._upstream.give_back(self.replica, self._connection)

    async def begin(self, request: bytes) -> Failure | BadRequest | None:
        """Send `request` and wait until the answer can be judged. None: it can be relayed."""
        connection = self._upstream.take_idle(self.replica)
        if connection is not None:
            await self._ask(connection, request)
            # The engine closed an idle connection while we wrote to it: that says nothing about the replica.
            if self.reading.broken_by != "reset" or connection.answered:
                return self._verdict()
            self.reading.broken_by = self._connection = None
        limit_s, limit = self._limit_to_connect()
        try:
            async with asyncio.timeout(limit_s) as self._connecting:
                connection = self._connection = await self._upstream.connect(self.replica)
        except TimeoutError:  # an OSError too
            return Failure(self.reading.broken_by or limit)
        except OSError:
            return Failure("connect")
        finally:
            self._connecting = None
        if not self.over:  # it may have been cut meanwhile
            await self._ask(connection, request)
        return self._verdict()

    @property
    def over(self) -> bool:
        """Whether the engine's answer has ended, one way or the other."""
        return self.reading.ended or self.reading.broken_by is not None

    @property
    def asked(self) -> bool:
        """Whether the engine may have seen the request."""
        return self._connection is not None

    @property
    def told_s(self) -> float:
        """How long after it was asked the engine sent what is known of its answer."""
        return self._last_byte_at - self._asked_at

    @property
    def asked_s(self) -> float:
        """How long ago the engine was asked."""
        return self._loop.time() - self._asked_at

    def deliver(self, answer: Answer, fields: Fields) -> None:
        """Send an answer that is not streamed to the client."""
        answer.whole(self._status, f"Content-Type: {self._content_type}\r\n{fields}", self._held_body())

    async def relay(self, answer: Answer, fields: Fields) -> BrokenBy | None:
        """Send a stream to the client, to its last byte. Return what ended it early; None where it is whole."""
        assert self._stream is not None
        if not answer.sent_status:
            answer.begin(self._status, f"Content-Type: {self._content_type}\r\n{STREAM_FIELDS}{fields}")
        answer.send(self._held_body())
        self._held.clear()
        if not self.over:
            self._answer = answer
            self._watch_client(answer.connection)
            self._stage = self._loop.create_future()
            left = False
            try:
                await self._stage
            except asyncio.CancelledError:
                left = True
            if left:  # behind the handler: compiled code must not wait within one (docs/performance.md#compiled)
                await self._hear_out()
                raise asyncio.CancelledError
        ended_by = self._stream.ended_by
        if ended_by is not None and ended_by != "engine_error":  # that the client was told by the engine itself
            answer.send(error_event(self._stream.broken_by or "unfinished", at_boundary=self._stream.at_boundary))
        answer.finish()
        return ended_by

    def cut(self, reason: Break) -> None:
        """Hang up on the engine, or do not wait until it takes a connection; the client gets a visible end."""
        if self._connection is not None:
            self._connection.abort()
        elif self._connecting is not None and not self._connecting.expired():
            self._connecting.reschedule(self._loop.time())
        self.broken(reason)

    def check_time(self, now: float) -> None:
        """Cut the answer where one of its limits has passed; else it may be time for a comment."""
        if self.over:
            return
        passed = self._passed(now)
        if passed is not None:
            self.cut(passed)
        elif self._keep_alive is not None:
            if self._answer is None:  # nothing of this answer is sent yet
                self._keep_alive.comment(now)
            elif self._stream is not None and self._stream.between_events:
                self._keep_alive.comment(now, quiet_since=self._last_byte_at)

    # From the engine's connection.

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the status and content type, and when to come again; no other field of an engine reaches the client."""
        self._status = status
        self._content_type = headers.get(b"content-type", b"").decode("latin-1")
        self._encoded = headers.get(b"content-encoding", b"identity") != b"identity"
        streams = self._content_type.lower().startswith("text/event-stream")
        if streams and status == _OK and isinstance(self.reading, Stream):
            self._stream = self.reading
        elif status != _OK and status not in CALLERS_FAULT:
            if status in FULL and (field := headers.get(b"retry-after")):
                self._retry_after_s = wait_of(field, now=self._clock.now())
            self._finish_stage()  # what its body says of the replica nobody is told

    def body(self, data: bytes) -> None:
        """Relay the next bytes, or hold them while the answer cannot be judged yet."""
        self._last_byte_at = self._loop.time()
        if self._stream is not None and self._answer is not None:
            self._answer.send(self._stream.feed(data))
        elif self._stream is None:
            self._hold(data)
            if self._status != _OK and self._held_bytes > MAX_HELD_BYTES:
                self._finish_stage()
        else:
            self._hold(self._stream.feed(data))
            if self._stream.began or self._stream.refused is not None or self._held_bytes > MAX_HELD_BYTES:
                self._finish_stage()

    def end(self) -> None:
        """The answer is complete as HTTP; whether it is as an answer, `reading` knows."""
        self.reading.ended = True
        if self._stream is not None:
            self._pass_on(self._stream.end())
        elif isinstance(self.reading, Whole) and self._status == _OK:
            self.reading.take(self._held_body())
        self._finish_stage()

    def broken(self, reason: Break) -> None:
        """The answer will not be completed."""
        self.reading.broken_by = reason
        if self._stream is not None:
            self._pass_on(self._stream.end())
        self._finish_stage()

    # From the client's connection.

    def client_paused(self) -> None:
        """Let the engine wait while the client does not keep up."""
        self._client_slow = self.held_up = True
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
        self._asked_at = self._loop.time()
        self._upstream.watch(self)
        connection.send(request, self)
        if not self.over:
            self._stage = self._loop.create_future()
            await self._stage

    async def _hear_out(self) -> None:
        """Read what an engine had for a client that did not keep up and has gone: it was generated, so it is charged.

        Some of it is in sockets, and some in the engine, which does not generate any slower for being held up.
        """
        if self.over or not self._client_slow:
            return
        self.left_unread = True
        self.client_resumed()
        self._stage = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAR_OUT_S):
                await self._stage

    def _limit_to_connect(self) -> tuple[float, Reason]:
        left_s = math.inf if self._deadline_at is None else self._deadline_at - self._clock.monotonic()
        timeout_s = self._timeouts.connect
        return (left_s, "client_deadline") if left_s < timeout_s else (timeout_s, "connect_timeout")

    def _verdict(self) -> Failure | BadRequest | None:
        reading = self.reading
        if isinstance(reading, Stream) and reading.refused is not None:
            return judge_event(reading.refused)
        if reading.broken_by is not None and not reading.began:
            return Failure(reading.broken_by)
        if self._status != _OK:
            return judge(self._status, self._held_body(), retry_after_s=self._retry_after_s)
        asked_for = self._stream is not None if isinstance(reading, Stream) else reading.began
        # We accept no encoding: what comes encoded all the same can be neither counted nor labelled for the client.
        if not asked_for or self._encoded or (self.over and not reading.began):
            return Failure("malformed")
        self.first_byte_at = self._clock.monotonic()
        return None

    def _pass_on(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.send(data)
        else:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_WHOLE_BYTES:
            self.cut("garbage")

    def _held_body(self) -> bytes:
        return self._held[0] if len(self._held) == 1 else b"".join(self._held)

    def _finish_stage(self) -> None:
        if self._stage is not None and not self._stage.done():
            self._stage.set_result(None)

    def _watch_client(self, client: ClientConnection) -> None:
        self._client = client
        client.flow = self
        if client.writing_paused:
            self.client_paused()

    def _passed(self, now: float) -> Break | None:
        """Return the limit that has passed, if one has: in all, between bytes (comments are some), to the beginning.

        Nor is it waited for the beginning where probes have found the replica down and another is up.
        """
        timeouts = self._timeouts
        asked_s = now - self._asked_at
        if self._deadline_at is not None and self._clock.monotonic() >= self._deadline_at:
            return "client_deadline"
        if timeouts.total is not None and asked_s >= timeouts.total:
            return "total_timeout"
        if self._began():
            silent_s = 0.0 if self._client_slow else now - self._last_byte_at
            return "idle_timeout" if silent_s >= timeouts.idle else None
        if not self.replica.up and self._answer is None and self._elsewhere():
            return "found_down"
        if isinstance(self.reading, Whole):
            return "answer_timeout" if asked_s >= timeouts.answer else None
        return "first_byte_timeout" if asked_s >= timeouts.first_byte else None

    def _began(self) -> bool:
        """Whether the answer has begun: a stream with its first event, comments do not count; another with any byte."""
        return self.reading.began if isinstance(self.reading, Stream) else bool(self._held)
