"""Where operators read and change one kind of settings, in the store itself: for the operator API and for the command.

What has ended is shown for a day. Then the next change takes it away.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from gateway.admission.settings.settings import Change, Settings
from gateway.clock import Clock
from gateway.errors import InvalidValue, NotFound

# Each takes every gateway 30 us of its event loop when it is first read (measured).
MAX_ENTRIES = 10_000

SHOWN_AFTER_END_S = 86_400


class Entry(Protocol):
    """What is kept under a name."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def value(self) -> bytes:
        """What is kept, as it is."""

    def ended(self, now_s: float) -> bool:
        """Whether its time is over."""


_Entry = TypeVar("_Entry", bound=Entry)


class Shelf(Generic[_Entry]):
    """Reads and changes what `settings` keep; `judge` makes the entries, `what` says in refusals what one is.

    Each method raises StoreUnavailable where the store does not answer; its cause says why.
    """

    def __init__(self, settings: Settings, judge: Callable[[str, bytes], _Entry], clock: Clock, *, what: str) -> None:
        self._settings = settings
        self._judge = judge
        self._clock = clock
        self._what = what

    async def entries(self) -> list[_Entry]:
        """Return all that is kept."""
        kept = await self._settings.read()
        return [self._judge(name, value) for name, value in kept.entries.items()]

    async def put(self, name: str, value: bytes) -> list[_Entry]:
        """Keep `value`, in place of the one before it. Return all that is kept then.

        Raises:
            InvalidValue: there are too many.
        """
        entries = await self.entries()
        tidying = list(self._tidying(entries))
        left = len(entries) - len(tidying)
        if left >= MAX_ENTRIES and all(entry.name != name for entry in entries):
            raise InvalidValue(f"There are {left} {self._what}s already; remove some.")
        await self._settings.change([*tidying, Change(name, value)])
        return await self.entries()

    async def remove(self, name: str) -> list[_Entry]:
        """Remove what is kept under that name. Return all that is kept then.

        Raises:
            NotFound: there is nothing.
        """
        entries = await self.entries()
        if all(entry.name != name for entry in entries):
            raise NotFound(f"There is no such {self._what}.")
        await self._settings.change([*self._tidying(entries), Change(name, None)])
        return await self.entries()

    def _tidying(self, entries: Iterable[_Entry]) -> Iterator[Change]:
        """Yield what takes away those that ended long ago, unless they were changed meanwhile."""
        long_ago = self._clock.now() - SHOWN_AFTER_END_S
        return (Change(entry.name, None, entry.value) for entry in entries if entry.ended(long_ago))
