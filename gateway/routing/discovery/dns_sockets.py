"""dnspython's sockets, of which none is left open: uvloop forgets a UDP socket whose maker is cancelled."""

import asyncio
from collections.abc import Coroutine
from socket import SOCK_DGRAM
from typing import Any

from dns.asyncbackend import Backend, Socket, get_backend  # type: ignore[attr-defined]  # what it is documented to have


class DnsSockets(Backend):
    """dnspython's own sockets for asyncio, each closed also where a look-up is given up while it is being made."""

    def __init__(self) -> None:
        self._own = get_backend("asyncio")

    def name(self) -> str:
        """Return its name, as dnspython knows it."""
        return self._own.name()

    def datagram_connection_required(self) -> bool:
        """Return whether a UDP socket must be connected."""
        return bool(self._own.datagram_connection_required())  # type: ignore[no-untyped-call]

    async def sleep(self, interval: float) -> None:
        """Wait so many seconds between two questions."""
        await self._own.sleep(interval)  # type: ignore[no-untyped-call]

    async def make_socket(self, af: int, socktype: int, *where: Any, **more: Any) -> Socket:
        """Make a socket. A UDP one is made and closed before its being given up is told: that waits for no server."""
        work: Coroutine[Any, Any, Socket] = self._own.make_socket(af, socktype, *where, **more)  # type: ignore[no-untyped-call]
        if socktype != SOCK_DGRAM:
            return await work
        making = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await (await making).close()  # type: ignore[no-untyped-call]
            raise
