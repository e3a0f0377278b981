"""One pool's source, followed for as long as it is the pool's: its answers go to the pool, failures change nothing."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Literal

from gateway.clock import Clock
from gateway.config import DiscoveryEntry, ReplicaEntry
from gateway.routing.discovery.found import Found, settled
from gateway.routing.discovery.pause import pause_s
from gateway.routing.discovery.source import Away, Source
from gateway.routing.pool import Pool

_log = logging.getLogger(__name__)

Result = Literal["changed", "unchanged", "failed"]
Observe = Callable[[str, Result], None]
"""Is told a pool's name and how one refresh ended."""

_SHOWN = 5


class Following:
    """`run` does it, until it is cancelled. `told` is set once the source has answered or failed for the first time.

    `good_at`: when it last said what there is, or began (the clock's monotonic seconds).
    """

    def __init__(
        self,
        pool: Pool,
        entry: DiscoveryEntry,
        source: Source,
        *,
        chance: random.Random,
        clock: Clock,
        observe: Observe,
    ) -> None:
        self.entry = entry
        self.told = asyncio.Event()
        self.good_at = clock.monotonic()
        self.stopped = False
        self._pool = pool
        self._source = source
        self._chance = chance
        self._clock = clock
        self._observe = observe
        self._known: Found | None = None
        self._left_out = 0
        self._failures = 0
        self._why = ""

    async def run(self) -> None:
        """Follow the source; after a failure, again."""
        while not self.stopped:
            try:
                await self._source.follow(self._take)
            except Away as failure:
                self._fail(str(failure))
            self.told.set()
            await asyncio.sleep(pause_s(self._failures, longest_s=self._source.longest_pause_s, chance=self._chance))

    def _take(self, answer: Sequence[ReplicaEntry]) -> None:
        if self.stopped:  # a cancellation got lost on its way (python/cpython#86296)
            raise asyncio.CancelledError
        found, left_out = settled(answer, known=self._known or (), most=self.entry.max_replicas)
        self.good_at = self._clock.monotonic()
        if self._failures:
            _log.warning("discovery of pool %s works again", self._pool.name)
        self._failures, self._why = 0, ""
        if left_out and not self._left_out:
            _log.error(
                "more replicas were found for pool %s than its max_replicas; taken: %d, left out: %d",
                self._pool.name, len(found), left_out,
            )  # fmt: skip
        self._left_out = left_out
        changed = found != self._known
        if changed:
            self._tell(self._known or (), found)
            self._known = found
            self._pool.find(found)
        self._observe(self._pool.name, "changed" if changed else "unchanged")
        self.told.set()

    def _fail(self, why: str) -> None:
        self._failures += 1
        self._observe(self._pool.name, "failed")
        if why != self._why:
            held = "nothing has been found yet" if self._known is None else "what was found last holds"
            _log.warning("discovery of pool %s failed, %s: %s", self._pool.name, held, why)
            self._why = why

    def _tell(self, before: Found, now: Found) -> None:
        there, here = {entry.url for entry in before}, {entry.url for entry in now}
        _log.warning(
            "replicas that were found for pool %s: %d; new: %s; gone: %s",
            self._pool.name, len(here), _shown(here - there), _shown(there - here),
        )  # fmt: skip


def _shown(urls: set[str]) -> str:
    more = f" and {len(urls) - _SHOWN} more" if len(urls) > _SHOWN else ""
    return ", ".join(sorted(urls)[:_SHOWN]) + more if urls else "none"
