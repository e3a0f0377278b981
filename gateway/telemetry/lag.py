"""How late the event loop is: a timer is set twice a second, and how much later it fires is handed on.

Sampled into a histogram, not a gauge: of thirty samples between two scrapes a gauge would show the last.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gateway import background
from gateway.clock import Clock

EVERY_S = 0.5


class LoopLag:
    """Owns the task that measures; `observe` is handed seconds, never less than 0."""

    def __init__(
        self,
        observe: Callable[[float], None],
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to measure, on the running loop."""
        self._task = background.begin(self._measure, name="loop lag")

    async def close(self) -> None:
        """Stop measuring."""
        await background.end(self._task)

    async def _measure(self) -> None:
        while True:
            asked = self._clock.monotonic() + EVERY_S
            await self._sleep(EVERY_S)
            self._observe(max(0.0, self._clock.monotonic() - asked))
