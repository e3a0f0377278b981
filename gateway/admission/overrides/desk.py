"""Where operators read and change overrides, in the store itself: for the operator API and for the command alike."""

from gateway import config
from gateway.admission.overrides.entry import check, judge
from gateway.admission.overrides.override import Override
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.settings import Settings
from gateway.admission.settings.shelf import Shelf
from gateway.clock import Clock


class Desk:
    """Reads and changes what `settings` keep, by the config's `limits`.

    Each method raises StoreUnavailable where the store does not answer; its cause says why.
    """

    def __init__(self, settings: Settings, limits: config.Limits, clock: Clock) -> None:
        self._limits = limits
        self._shelf = Shelf(settings, self._judge, clock, what="override")

    def configure(self, limits: config.Limits) -> None:
        """Go by these limits from now on."""
        self._limits = limits

    async def entries(self) -> list[Entry[Override]]:
        """Return all that is kept."""
        return await self._shelf.entries()

    async def put(self, override: Override) -> list[Entry[Override]]:
        """Keep `override`, in place of the one before it. Return all that is kept then.

        Raises:
            InvalidValue: the config has no such plan or rule; or there are too many.
        """
        check(override, self._limits)
        return await self._shelf.put(override.name, override.value())

    async def remove(self, name: str) -> list[Entry[Override]]:
        """Remove the override of that name. Return all that is kept then.

        Raises:
            NotFound: there is none.
        """
        return await self._shelf.remove(name)

    def _judge(self, name: str, value: bytes) -> Entry[Override]:
        return judge(name, value, self._limits)
