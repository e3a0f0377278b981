"""A Redis-protocol server as its URL names it: connects, authenticates, and makes it know the scripts.

redis-py reads the URL and makes the TLS context. The rest is ours: it would charge twice (redis-py#261), hold a call
for seconds, and take several times the CPU.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Protocol

from redis.asyncio import Connection as Parameters
from redis.asyncio import ConnectionPool, SSLConnection

from gateway.admission.redis.command import pack
from gateway.admission.redis.connection import ALONE, CommandRefused, Connection, ServerFailed, replies
from gateway.admission.redis.scripts import Prepared, write_nothing

_TELL_HISTORY = pack(["INFO", "replication"])


class Connects(Protocol):
    """Whoever can be asked for a connection to a server that can serve."""

    async def connect(self, *, within_s: float) -> Connection:
        """Return a new connection.

        Raises:
            OSError: there is none, or not in time.
            ServerFailed: the server cannot serve.
        """

    async def close(self) -> None:
        """End what goes on beside the connections."""


class Server:
    """Where the server is, and what each connection to it begins with: `last` comes after the scripts.

    By default that is a write, for one that is out of memory takes none. `alone` is what errors begin with that concern
    one command alone.
    """

    def __init__(
        self,
        url: str,
        scripts: Sequence[Prepared],
        *,
        last: Callable[[], Sequence[bytes]] | None = None,
        alone: tuple[str, ...] = ALONE,
    ) -> None:
        self._parameters = _parameters(url)
        self._greeting = [*_introduction(self._parameters), *[script.load() for script in scripts]]
        self._last = last or write_nothing
        self._connection = partial(Connection, alone)

    async def connect(self, *, within_s: float) -> Connection:
        """Return a connection to a server that can serve.

        Raises:
            OSError: it cannot be reached, or does not answer in time.
            ServerFailed: it cannot serve.
        """
        at = self._parameters
        tls = at.ssl_context.get() if isinstance(at, SSLConnection) else None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(within_s):
            transport, connection = await loop.create_connection(self._connection, at.host, at.port, ssl=tls)
            with ExitStack() as unless_greeted:
                unless_greeted.callback(connection.abort)
                _keep_alive(transport.get_extra_info("socket"), at)
                await self._greet(connection)
                unless_greeted.pop_all()
        return connection

    async def _greet(self, connection: Connection) -> None:
        greeting = [*self._greeting, *self._last()]
        for reply in await replies(connection, greeting) if greeting else []:
            if isinstance(reply, CommandRefused):
                raise ServerFailed(str(reply))

    async def close(self) -> None:
        """Nothing goes on."""


class Master:
    """One of several servers that have the same data, which serves as long as it is no replica."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def connect(self, *, within_s: float) -> Connection:
        """Return a connection that knows its server's history.

        Raises:
            OSError: it cannot be reached, or does not answer in time.
            ServerFailed: it cannot serve, or is no master.
        """
        async with asyncio.timeout(within_s):
            connection = await self._server.connect(within_s=within_s)
            with ExitStack() as unless_master:
                unless_master.callback(connection.abort)
                (info,) = await replies(connection, [_TELL_HISTORY])
                if isinstance(info, CommandRefused):
                    raise ServerFailed(str(info))
                facts = dict(line.partition(":")[::2] for line in info.decode().splitlines())
                if facts.get("role") != "master":
                    raise ServerFailed(f"it is no master, but a {facts.get('role')}")
                connection.history = facts.get("master_replid", "")
                connection.copied = facts.get("connected_slaves", "0") != "0" or _promoted(facts)
                unless_master.pop_all()
        return connection

    async def close(self) -> None:
        """Nothing goes on."""


def _promoted(facts: Mapping[str, str]) -> bool:
    """Whether it has been a replica: the one that it took over from may be its replica soon."""
    return bool(facts.get("master_replid2", "").strip("0"))


def _parameters(url: str) -> Parameters:
    """Return what the URL says of a connection. Read only: it never connects."""
    parameters = ConnectionPool.from_url(url).make_connection()  # type: ignore[no-untyped-call]
    assert isinstance(parameters, Parameters)
    return parameters


def _keep_alive(connected: socket.socket, parameters: Parameters) -> None:
    """Have the system probe an idle connection: a balancer between would forget it, and a call would find it silent."""
    figures = parameters.socket_keepalive_options
    if parameters.socket_keepalive and isinstance(figures, Mapping):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, figure in figures.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, figure)


def _introduction(parameters: Parameters) -> list[bytes]:
    """Return the commands that say who we are, and which database we mean."""
    commands: list[bytes] = []
    if parameters.username:
        commands.append(pack(["AUTH", parameters.username, parameters.password or ""]))
    elif parameters.password:
        commands.append(pack(["AUTH", parameters.password]))
    if parameters.client_name:
        commands.append(pack(["CLIENT", "SETNAME", parameters.client_name]))
    if parameters.db:
        commands.append(pack(["SELECT", parameters.db]))
    return commands
