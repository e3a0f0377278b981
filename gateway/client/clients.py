"""All clients that are connected to a listener: how they are answered, when their time is up, how all are let go."""

import asyncio
import math
from collections.abc import Callable

from gateway.client.answer import Answer
from gateway.client.connection import ClientConnection, Handler
from gateway.client.request import Request
from gateway.lookout import READ_FIRST_S, Lookout
from gateway.outbox import Outbox

# Longer than proxies in front keep a connection: we must not be the one that closes while a request is on its way.
KEEP_ALIVE_S = 3630.0
# How often the time limits of all connections are looked at. A timer for each would cost every request more.
LOOK_EVERY_S = 1.0
# The same while clients are let go.
LEAVING_LOOK_EVERY_S = 0.05
# How long a connection is kept for a request that may be on its way while clients are let go: its client has just
# connected, or has just had an answer that did not say it was the last. To close in this moment would reset it.
GRACE_S = 0.5
# How often is looked until it is over. Not seconds: they pass while this process stands still, and reads nothing.
_LEAVING_LOOKS = round(GRACE_S / LEAVING_LOOK_EVERY_S) + 2


class Clients:
    """The connections. Calling it makes the protocol of a new one.

    `handle` answers a request, and returns once the client has most of the answer; `malformed` answers what is none. A
    head has to arrive within `head_timeout_s`, and no field of it may be longer than `max_field` bytes. A client that
    takes nothing of what waits for it is cut after `write_timeout_s`, or never if that is None. `now` is the event
    loop's time, some `LOOK_EVERY_S` old at most.
    """

    def __init__(
        self,
        handle: Handler,
        malformed: Callable[[Request], Answer],
        *,
        outbox: Outbox,
        head_timeout_s: float,
        write_timeout_s: float | None,
        max_field: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.outbox = outbox
        self.now = self.loop.time()
        self.handle = handle
        self.malformed = malformed
        self.max_field = max_field
        self._connections: set[ClientConnection] = set()
        self.configure(head_timeout_s=head_timeout_s, write_timeout_s=write_timeout_s)
        self._leaving = False
        self._idle_s = KEEP_ALIVE_S
        self._every_s = LOOK_EVERY_S
        self._lookout = Lookout(self.loop, self._look_at_limits)
        self._lookout.after(LOOK_EVERY_S)

    def __call__(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    def configure(self, *, head_timeout_s: float, write_timeout_s: float | None) -> None:
        """Go by these time limits from now on, of connections that there are too."""
        self._head_timeout_s = head_timeout_s
        self._write_timeout_s = math.inf if write_timeout_s is None else write_timeout_s

    def add(self, connection: ClientConnection) -> None:
        """Look after a connection from now on."""
        connection.closing = self._leaving
        self._connections.add(connection)

    def discard(self, connection: ClientConnection) -> None:
        """Forget one that is closed."""
        self._connections.discard(connection)

    def leave(self) -> None:
        """Have every answer that begins from now on be its connection's last, and say so: clients go elsewhere."""
        self._leaving = True
        for connection in self._connections:
            connection.closing = True

    def let_go(self) -> None:
        """Close the connections on which no request is under way nor may be on its way; others as they come there."""
        self.leave()
        self._idle_s, self._every_s = GRACE_S, LEAVING_LOOK_EVERY_S
        self._lookout.after(READ_FIRST_S)

    async def requests_in(self) -> None:
        """Wait until no request can be on its way any more, on connections that are let go."""
        await self._until(lambda: not any(connection.expecting for connection in self._connections))

    async def gone(self) -> None:
        """Wait until every connection is closed, where none has a request under way; at most `GRACE_S`."""
        await self._until(lambda: not self._connections)

    def abort(self) -> None:
        """Close every connection, and look after none any more."""
        self._lookout.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    def _look_at_limits(self, now: float) -> None:
        self.now = now
        for connection in tuple(self._connections):
            connection.check_time(now, idle_s=self._idle_s, head_s=self._head_timeout_s, write_s=self._write_timeout_s)
        self._lookout.after(self._every_s)

    async def _until(self, condition: Callable[[], bool]) -> None:
        for _ in range(_LEAVING_LOOKS):
            if condition():
                return
            await asyncio.sleep(LEAVING_LOOK_EVERY_S)
