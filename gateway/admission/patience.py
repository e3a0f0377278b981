"""A time limit that blames only the other side: when it is over, what has already arrived is still taken.

After a stall of our own event loop a timer fires before the loop has looked at its sockets (uvloop runs timers first),
and a reply that came in good time would count as late. So the end of the time only starts a few turns of the loop, in
each of which sockets are looked at; the wait is cancelled when those changed nothing.
"""

import asyncio
from types import TracebackType
from typing import Self

# One turn reads the socket, one wakes the reader, one runs whoever waits for it; TLS takes one more.
_TURNS = 5


class Patience:
    """`async with Patience(seconds):` raises TimeoutError in its body, as `asyncio.timeout` does."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.Handle | None = None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._turn, _TURNS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def _turn(self, left: int) -> None:
        loop = asyncio.get_running_loop()
        if left:
            self._timer = loop.call_soon(self._turn, left - 1)
        else:
            self._scope.reschedule(loop.time())
