"""The tenants' port: bound, listened on, and closed without losing a client that waits to be accepted. No HTTP here."""

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gateway.client.clients import Clients
from gateway.config import Listen

# Connections that wait to be accepted: a burst of clients must not be refused because one turn of the loop was long.
BACKLOG = 1024

KEY = "server.listen"


class CannotListen(Exception):
    """An address cannot be had. The message says which and why."""


@contextmanager
def explained(address: Listen, *, key: str) -> Iterator[None]:
    """Raise CannotListen for what goes wrong with `address`, which the config has under `key`."""
    try:
        yield
    except OSError as error:
        # Not its own text, in which asyncio tells the address again; a name that is not resolved has a negative number.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        advice = f"Set {key} to an address of this machine that is free."
        raise CannotListen(f"{key}: cannot listen on {address}: {why}. {advice}") from error


def bind(address: Listen, *, shared: bool) -> list[socket.socket]:
    """Return a socket for each address that the host has; nobody can connect yet.

    `shared`: other sockets of this user may be bound to the same port, if they are `shared` too.

    Raises:
        CannotListen: the address cannot be had.
    """
    with explained(address, key=KEY):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        bound: list[socket.socket] = []
        try:
            for family, kind, protocol, _, place in dict.fromkeys(found):
                bound.append(socket.socket(family, kind, protocol))
                _prepare(bound[-1], shared=shared)
                bound[-1].bind(place)
        except OSError:
            for one in bound:
                one.close()
            raise
        return bound


def check_free(address: Listen) -> None:
    """See that nobody listens there: two gateways that share a port by mistake would split its clients.

    Raises:
        CannotListen: somebody does.
    """
    for one in bind(address, shared=False):
        one.close()


@dataclass(frozen=True, slots=True)
class Given:
    """What a supervisor has bound for this process: sockets for tenants, and a private one for operators' requests."""

    worker: int
    tenants: Sequence[socket.socket]
    operators: socket.socket


class Port:
    """Accepts connections for `clients` on bound sockets, which it owns from now on."""

    def __init__(self, sockets: Sequence[socket.socket], clients: Clients) -> None:
        self.number = int(sockets[0].getsockname()[1])
        self._sockets = sockets
        self._clients = clients
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Let clients connect.

        Raises:
            OSError: the address cannot be had after all.
        """
        loop = asyncio.get_running_loop()
        for one in self._sockets:  # of each a twin: closing that leaves ours as it is
            self._servers.append(await loop.create_server(self._clients, sock=one.dup(), backlog=BACKLOG))

    async def close(self) -> None:
        """Let nobody connect any more, but take in who has: the kernel resets what waits on a socket that is closed."""
        loop = asyncio.get_running_loop()
        waited: list[socket.socket] = []
        for server in self._servers:
            server.close()
        for one in self._sockets:
            one.settimeout(0)
            with suppress(OSError):  # nobody waits any more, or this was never listened on
                while True:
                    waited.append(one.accept()[0])
            with suppress(OSError):
                one.shutdown(socket.SHUT_RD)  # a supervisor has it open too
            one.close()
        taken = [loop.connect_accepted_socket(self._clients, one) for one in waited]
        await asyncio.gather(*taken, return_exceptions=True)


def _prepare(one: socket.socket, *, shared: bool) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
