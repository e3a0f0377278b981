"""Host names in, addresses out, as the system looks them up: each name by itself, so that one cannot hold up another.

The event loop's own look-ups share four threads: while eight wait for a name whose server does not answer, no other
name is looked up for half a minute, not even one of /etc/hosts. Here each name has one thread at most, whoever asks.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway import background

# For how long an answer is waited for where an earlier one is known. Servers answer in milliseconds.
PATIENCE_S = 0.5

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_GONE = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


class Address(NamedTuple):
    """An address, and of which family."""

    family: int
    host: str


LookUp = Callable[[str], Sequence[tuple[Any, ...]]]


def _look_up(host: str) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)


def numeric(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """Return what the system makes of an address, its zone included; nothing is looked up."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=_NUMERIC)


class HostNames(AbstractResolver):
    """Looks names up. Where that takes long or fails, what was found last holds, but for a name that is gone."""

    def __init__(self, look_up: LookUp = _look_up) -> None:
        self._look_up = look_up
        self._under_way: dict[str, asyncio.Task[Sequence[Address]]] = {}
        self._known: dict[str, Sequence[Address]] = {}

    async def addresses(self, host: str) -> Sequence[Address]:
        """Return the addresses of `host`, at least one, in the order in which they are to be tried.

        Raises:
            OSError: it has none, or nobody can say.
        """
        with suppress(ValueError):
            ip = ip_address(host)
            return [Address(socket.AF_INET if ip.version == 4 else socket.AF_INET6, host)]  # noqa: PLR2004 IPv4
        asking = self._under_way.get(host) or self._begin(host)
        # `wait`, because who waits no longer must not end it for others.
        await asyncio.wait([asking], timeout=PATIENCE_S if host in self._known else None)
        known = self._known.get(host)  # not if it is gone
        if known is None or (asking.done() and not asking.cancelled() and asking.exception() is None):
            return asking.result()
        return known

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Do the same for aiohttp."""
        return [
            ResolveResult(hostname=host, host=one.host, port=port, family=one.family, proto=0, flags=_NUMERIC)
            for one in await self.addresses(host)
            if family in {socket.AF_UNSPEC, one.family}
        ]

    async def close(self) -> None:
        """Ask no more. A thread that still asks ends with its answer, and is waited for by nobody."""
        await background.end(*self._under_way.values())

    def _begin(self, host: str) -> "asyncio.Task[Sequence[Address]]":
        asking = self._under_way[host] = asyncio.create_task(self._ask(host))
        asking.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # perhaps nobody waits
        return asking

    async def _ask(self, host: str) -> Sequence[Address]:
        try:
            infos = await background.apart(partial(self._look_up, host), name=f"look-up of {host}")
        except OSError as error:
            if error.errno in _GONE:  # its addresses may be somebody else's by now
                self._known.pop(host, None)
            raise
        except UnicodeError as error:  # a name that cannot be one
            raise OSError(socket.EAI_NONAME, str(error)) from error
        finally:
            del self._under_way[host]
        found = [Address(family, _shown(address)) for family, _, _, _, address in infos]
        self._known[host] = [*dict.fromkeys(found)]
        return self._known[host]


def _shown(address: tuple[Any, ...]) -> str:
    """Return a socket's address as text, with its zone if it has one."""
    host = str(address[0])
    return f"{host}%{address[3]}" if len(address) > 3 and address[3] and "%" not in host else host  # noqa: PLR2004 IPv6
