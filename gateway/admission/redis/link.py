"""The way to the server: a pipeline in, and all its replies or why there are none, within a time limit.

A pipeline that does not come back whole is sent once more, on a new connection and within the same time: commands must
be harmless to repeat. That mends a connection that was closed since it was last used, and a server that forgot the
scripts, which each new connection loads.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from gateway import background
from gateway.admission.redis.connection import Connection, ServerFailed
from gateway.admission.redis.patience import Patience
from gateway.admission.redis.server import Connects
from gateway.clock import Clock

log = logging.getLogger(__name__)

_TIMES_SENT = 2

# An exchange waits for its own time only; a connection that comes later serves the next one.
_CONNECT_WITHIN_S = 5.0


class LinkFailed(Exception):
    """The server is not there, cannot serve, or did not answer in time. When `sent`, it may have done all the same."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


Outcome = list[Any] | LinkFailed


class Link:
    """A connection that is made when it is needed, and made anew after a failure. One exchange at a time."""

    def __init__(self, server: Connects, clock: Clock) -> None:
        self.lost: Callable[[], None] | None = None  # who hears that the connection failed between exchanges
        self._server = server
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._patience = Patience(clock, self._too_late)
        # Of the exchange under way:
        self._commands: Sequence[bytes] = ()
        self._then: Callable[[Outcome], None] | None = None
        self._sent = 0

    @property
    def history(self) -> str:
        """Which writes the server knows that is, or was last, connected to. It is another when some may be lost."""
        return "" if self._connection is None else self._connection.history

    @property
    def copied(self) -> bool:
        """Whether the server that is, or was last, connected to is one of several that have the same data."""
        return self._connection is not None and self._connection.copied

    def exchange(self, commands: Sequence[bytes], then: Callable[[Outcome], None], *, within_s: float) -> None:
        """Send `commands`, and call `then` with their replies in order. No commands: only see that the server is there.

        An error that concerns one command alone stands in its reply's place as a `CommandRefused`.
        """
        self._commands, self._then, self._sent = commands, then, 0
        self._patience.begin(within_s)
        self._transmit()

    async def close(self) -> None:
        """Drop the connection, and what is under way."""
        self._patience.end()
        self._then = None
        if self._connection is not None:
            self._connection.abort()
        await background.end(self._connecting)
        await self._server.close()

    def _transmit(self) -> None:
        if self._connection is None or self._connection.closed:
            if self._connecting is None:
                connecting = self._server.connect(within_s=_CONNECT_WITHIN_S)
                self._connecting = asyncio.get_running_loop().create_task(connecting, name="limit store")
                self._connecting.add_done_callback(self._connected)
        elif self._commands:
            self._sent += 1
            self._connection.exchange(self._commands, self._came)
        else:
            self._end([])

    def _came(self, replies: list[Any] | ServerFailed) -> None:
        if not isinstance(replies, ServerFailed):
            self._end(replies)
        elif self._sent < _TIMES_SENT:
            self._transmit()
        else:
            self._fail(replies)

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            self._connection = task.result()
            self._connection.lost = self.lost
        elif not isinstance(failure, OSError | ServerFailed):
            log.critical("the limit store cannot be connected to, by a defect of ours", exc_info=failure)
        if self._then is None:  # it was too late for that
            return
        if failure is None:
            self._transmit()
        else:
            self._fail(failure)

    def _too_late(self) -> None:
        self._fail(TimeoutError("no answer in time"))

    def _fail(self, error: BaseException) -> None:
        if self._connection is not None:
            self._connection.abort()  # nobody may read the replies that are still to come
        self._end(LinkFailed(f"{type(error).__name__}: {error}", sent=self._sent > 0))

    def _end(self, outcome: Outcome) -> None:
        self._patience.end()
        then, self._then = self._then, None
        assert then is not None
        then(outcome)
