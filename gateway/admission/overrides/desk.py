"""Where operators read and change overrides, in the store itself: for the operator API and for the command alike."""

from collections.abc import Iterable, Iterator

from gateway import config
from gateway.admission.overrides.entry import Entry, check, judge
from gateway.admission.overrides.override import Override
from gateway.admission.settings.settings import Change, Settings
from gateway.clock import Clock
from gateway.errors import InvalidValue, NotFound

# Each takes every gateway 30 us of its event loop when it is first read (measured).
MAX_OVERRIDES = 10_000

# What has ended is shown for so long. Then the next change takes it away.
SHOWN_AFTER_END_S = 86_400


class Desk:
    """Reads and changes what `settings` keep, by the config's `limits`.

    Each method raises StoreUnavailable where the store does not answer; its cause says why.
    """

    def __init__(self, settings: Settings, limits: config.Limits, clock: Clock) -> None:
        self._settings = settings
        self._limits = limits
        self._clock = clock

    async def entries(self) -> list[Entry]:
        """Return all that is kept."""
        kept = await self._settings.read()
        return [judge(name, value, self._limits) for name, value in kept.entries.items()]

    async def put(self, override: Override) -> list[Entry]:
        """Keep `override`, in place of the one before it. Return all that is kept then.

        Raises:
            InvalidValue: the config has no such plan or rule; or there are too many.
        """
        check(override, self._limits)
        entries = await self.entries()
        if len(entries) >= MAX_OVERRIDES and all(entry.name != override.name for entry in entries):
            raise InvalidValue(f"There are {len(entries)} overrides already; remove some.")
        await self._settings.change([*self._tidying(entries), Change(override.name, override.value())])
        return await self.entries()

    async def remove(self, name: str) -> list[Entry]:
        """Remove the override of that name. Return all that is kept then.

        Raises:
            NotFound: there is none.
        """
        entries = await self.entries()
        if all(entry.name != name for entry in entries):
            raise NotFound("There is no such override.")
        await self._settings.change([*self._tidying(entries), Change(name, None)])
        return await self.entries()

    def _tidying(self, entries: Iterable[Entry]) -> Iterator[Change]:
        """Yield what takes away those that ended long ago, unless they were changed meanwhile."""
        long_ago = self._clock.now() - SHOWN_AFTER_END_S
        return (Change(entry.name, None, entry.value) for entry in entries if entry.ended(long_ago))
