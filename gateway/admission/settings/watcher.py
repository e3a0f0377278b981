"""Follows one kind of settings in the store: whoever uses them is told when they moved, and keeps the last while not.

The store is asked for the version only, twice a second, and for the rest when that has moved. While it is away the last
known settings hold. A store that lost its data is given them back, so that only what no gateway knows is lost.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from gateway import background
from gateway.admission.settings.settings import Kept, Settings
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock

log = logging.getLogger(__name__)

# A quarter of what a change may take until it holds everywhere. Asking takes this process 0.1 ms.
EVERY_S = 0.5

# A gateway that starts waits so long at most for what holds, before it takes calls: also where the first try is lost,
# which takes a second.
FIRST_WITHIN_S = 2.0


class Watcher:
    """Owns the task that asks. `take` gets all entries, at the first reading and after each change; it must not raise.

    `what` is their name in logs. `failed` is told of each reading that failed.
    """

    def __init__(
        self,
        settings: Settings,
        take: Callable[[Mapping[str, bytes]], None],
        clock: Clock,
        *,
        what: str,
        failed: Callable[[], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._settings = settings
        self._take = take
        self._clock = clock
        self._what = what
        self._failed = failed
        self._every_s = every_s
        self._kept = Kept()
        self._read = False  # ever
        self._taken = False  # what was read last
        self._away = False
        self._good_at = clock.monotonic()
        self._turn = asyncio.Lock()
        self._asked = asyncio.Event()  # for the first time, to whatever end
        self._watching: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        """How long ago the store last said what holds; before the first time, since the start."""
        return max(self._clock.monotonic() - self._good_at, 0.0)

    async def start(self) -> None:
        """Follow what is kept, and wait for a moment at most until it has been read, or could not be."""
        self._watching = background.begin(self._watch, name=f"{self._what} watch")
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WITHIN_S):
                await self._asked.wait()

    async def close(self) -> None:
        """Stop, and let the store go."""
        await background.end(self._watching)
        await self._settings.close()

    async def refresh(self) -> None:
        """Ask now.

        Raises:
            StoreUnavailable: the last known holds on.
        """
        async with self._turn:
            try:
                moved = await self._moved()
            except StoreUnavailable as failure:
                self._note_failure(failure)
                raise
        if self._away:
            self._away = False
            log.warning("the %s can be read again", self._what)
        if moved or not self._taken:
            self._taken = False
            self._take(self._kept.entries)
            self._taken = True
        self._good_at = self._clock.monotonic()

    async def _moved(self) -> bool:
        version = await self._settings.version()
        if self._read and version == self._kept.version:
            return False
        if self._kept.is_lost_at(version):
            log.warning("the limit store lost the %s; %d are written back", self._what, len(self._kept.entries))
            await self._settings.restore(self._kept)
        self._kept, self._read = await self._settings.read(), True
        return True

    def _note_failure(self, failure: StoreUnavailable) -> None:
        self._failed()
        if not self._away:
            self._away = True
            held = "the last known hold" if self._read else "none hold until they can"
            log.warning("the %s cannot be read, %s: %s", self._what, held, failure.__cause__)

    async def _watch(self) -> None:
        while True:
            with suppress(StoreUnavailable):
                await self.refresh()
            self._asked.set()
            await asyncio.sleep(self._every_s)
