"""Settings in this process's memory: gone with the process, and never away."""

from collections.abc import Sequence

from gateway.admission.settings.settings import NEVER, Change, Kept


class MemorySettings:
    """A `Settings` for one process alone."""

    def __init__(self) -> None:
        self._kept = Kept()

    async def version(self) -> bytes:
        """Return the version."""
        return self._kept.version

    async def read(self) -> Kept:
        """Return all that is kept."""
        return self._kept

    async def change(self, changes: Sequence[Change]) -> None:
        """Make `changes`."""
        entries = dict(self._kept.entries)
        for change in changes:
            if change.before is not None and entries.get(change.name) != change.before:
                continue
            if change.value is None:
                entries.pop(change.name, None)
            else:
                entries[change.name] = change.value
        self._kept = Kept(b"%d" % (int(self._kept.version or 0) + 1), entries)

    async def restore(self, kept: Kept) -> None:
        """Write back `kept` where nothing is."""
        if self._kept.version == NEVER:
            self._kept = kept

    async def close(self) -> None:
        """Nothing is open."""
