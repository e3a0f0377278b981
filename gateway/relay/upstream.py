"""Connections to replicas: opened, kept while idle, reused most-recent-first; and the time limits of those in use."""

import asyncio
import ssl
from collections import deque
from functools import partial
from typing import Protocol

from aiohappyeyeballs import start_connection

from gateway.clock import Clock
from gateway.lookout import Lookout
from gateway.outbox import Outbox
from gateway.relay.connection import Connection
from gateway.routing.host_names import HostNames, numeric
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica

# uvicorn (vLLM, SGLang) closes a connection that was idle for 5 s: ours are given up before that.
KEEP_IDLE_S = 4.0
# An address that says nothing for so long has the next one tried beside it (RFC 8305, 5 recommends 250 ms).
NEXT_AFTER_S = 0.25

# How often the time limits of each exchange are looked at. A timer for each would cost every call more than this does.
LOOK_EVERY_S = 0.1
# In how many parts: a look at 1,000 streams takes 1.4 ms, for which all their events would wait.
_LOOKS = 10


class Limited(Protocol):
    """An exchange, which ends itself when it is told the time and a limit of its own has passed."""

    def check_time(self, now: float) -> None:
        """Take the time of the event loop, in seconds."""


class Upstream:
    """All connections of this process to replicas that no exchange uses right now, and a watch over the exchanges."""

    def __init__(self, clock: Clock, outbox: Outbox, names: HostNames) -> None:
        self.loop = asyncio.get_running_loop()  # once: asking for it costs each call a system call
        self._clock = clock
        self._names = names
        self._new = partial(Connection, outbox)
        self._watched: set[Limited] = set()
        self._to_look_at: list[Limited] = []
        self._at_once = 1
        self._lookout = Lookout(self.loop, self._look_at_some)
        self._idle: dict[Replica, deque[Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    def watch(self, exchange: Limited) -> None:
        """Tell `exchange` the time every `LOOK_EVERY_S`, until `forget`."""
        self._watched.add(exchange)
        if not self._lookout.waiting:
            self._lookout.after(LOOK_EVERY_S / _LOOKS)

    def forget(self, exchange: Limited) -> None:
        """Stop telling it."""
        self._watched.discard(exchange)

    def take_idle(self, replica: Replica) -> Connection | None:
        """Return an open connection that was used last and not long ago, or None."""
        idle = self._idle.get(replica)
        oldest = self._clock.monotonic() - KEEP_IDLE_S
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, replica: Replica) -> Connection:
        """Open a connection. How long that may take its caller says.

        Raises:
            OSError: it was refused, cannot be routed, or TLS failed.
        """
        transport, connection = await self._connect(replica)
        if replica.tls:
            await self._encrypt(transport, connection, replica.server_name)
        return connection

    async def _connect(self, replica: Replica) -> tuple[asyncio.Transport, Connection]:
        first, *others = await self._names.addresses(replica.host)
        if not others:
            return await self.loop.create_connection(self._new, first.host, replica.port)
        infos = [info for one in (first, *others) for info in numeric(one.host, replica.port)]
        opened = await start_connection(infos, happy_eyeballs_delay=NEXT_AFTER_S, interleave=1)
        return await self.loop.create_connection(self._new, sock=opened)

    def give_back(self, replica: Replica, connection: Connection) -> None:
        """Keep a connection for the next exchange if it can carry one, else close it."""
        if replica.gone or not connection.reusable:
            connection.abort()
            return
        connection.idle_since = now = self._clock.monotonic()
        idle = self._idle.setdefault(replica, deque())
        idle.append(connection)
        while idle[0] is not connection and (idle[0].idle_since <= now - KEEP_IDLE_S or not idle[0].reusable):
            idle.popleft().abort()

    def follow(self, _pool: Pool) -> None:
        """Let go of connections to replicas that belong to no pool any more."""
        for replica in [replica for replica in self._idle if replica.gone]:
            for connection in self._idle.pop(replica):
                connection.abort()

    def close(self) -> None:
        """Close every idle connection, and watch no more."""
        self._lookout.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    def _look_at_some(self, now: float) -> None:
        if not self._to_look_at:
            self._to_look_at = list(self._watched)
            self._at_once = -(-len(self._to_look_at) // _LOOKS)
        for exchange in self._to_look_at[-self._at_once :]:
            if exchange in self._watched:
                exchange.check_time(now)
        del self._to_look_at[-self._at_once :]
        if self._watched or self._to_look_at:
            self._lookout.after(LOOK_EVERY_S / _LOOKS)

    async def _encrypt(self, transport: asyncio.Transport, connection: Connection, host: str) -> None:
        """Let `connection` speak TLS.

        In a step of its own: cancelled while it opens a connection with TLS, uvloop may close the socket under a
        handshake that it has just completed, and logs a traceback for it.
        """
        try:
            encrypted = await self.loop.start_tls(transport, connection, self._tls_context(), server_hostname=host)
        except BaseException:  # it failed, took too long, or the client has gone
            transport.abort()
            raise
        assert encrypted is not None, "only a transport that is closing gives none"
        connection.connection_made(encrypted)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
