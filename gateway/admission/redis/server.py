"""A Redis-protocol server as its URL names it: connects, authenticates, and makes it know the scripts.

redis-py reads the URL and makes the TLS context. The rest is ours: it would charge twice (redis-py#261), hold a call
for seconds, and take several times the CPU.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from redis.asyncio import Connection as Parameters
from redis.asyncio import ConnectionPool, SSLConnection

from gateway.admission.redis.connection import CommandRefused, Connection, ServerFailed
from gateway.admission.redis.scripts import Script, pack, write_nothing


class Server:
    """Where the server is, and what each connection to it begins with."""

    def __init__(self, url: str, scripts: Sequence[Script]) -> None:
        parameters = ConnectionPool.from_url(url).make_connection()  # type: ignore[no-untyped-call]
        assert isinstance(parameters, Parameters)
        self._parameters = parameters  # read only: it never connects
        # That it takes writes is tried at the end: one out of memory may not.
        self._greeting = [*_introduction(parameters), *[script.load() for script in scripts], write_nothing()]

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
            transport, connection = await loop.create_connection(Connection, at.host, at.port, ssl=tls)
            with ExitStack() as unless_greeted:
                unless_greeted.callback(connection.abort)
                _keep_alive(transport.get_extra_info("socket"), at)
                await self._greet(connection)
                unless_greeted.pop_all()
        return connection

    async def _greet(self, connection: Connection) -> None:
        came: asyncio.Queue[list[Any] | ServerFailed] = asyncio.Queue()
        connection.exchange(self._greeting, came.put_nowait)
        replies = await came.get()
        if isinstance(replies, ServerFailed):
            raise replies
        for reply in replies:
            if isinstance(reply, CommandRefused):
                raise ServerFailed(str(reply))


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
