"""Work that many ask for and that is done once at a time: who asks amid a round shares the next with all who do.

So what is told was looked at after it was asked for, and nobody waits for more than two rounds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Rounds(Generic[_Result]):
    """Does `work` as often as it has to."""

    def __init__(self, work: Callable[[], Awaitable[_Result]]) -> None:
        self._work = work
        self._under_way = asyncio.Lock()
        self._next: asyncio.Task[_Result] | None = None

    async def result(self) -> _Result:
        """Return what the next round comes to; who is cancelled leaves it to the others."""
        if self._next is None:
            self._next = asyncio.create_task(self._round())
        return await asyncio.shield(self._next)

    async def _round(self) -> _Result:
        async with self._under_way:
            self._next = None
            return await self._work()
