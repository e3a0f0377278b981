"""Owns the tasks that find replicas: one for each pool that has `discovery`, begun and ended as that changes."""

import asyncio
import random
from collections.abc import Iterable

import aiohttp

from gateway import background
from gateway.clock import Clock
from gateway.config import DiscoveryEntry
from gateway.routing.discovery.dns import DnsSource
from gateway.routing.discovery.file import FileSource
from gateway.routing.discovery.following import Following, Observe
from gateway.routing.discovery.kubernetes import KubernetesSource
from gateway.routing.discovery.source import Source
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools

# A gateway that starts waits so long at most for first answers, before it takes calls.
FIRST_WITHIN_S = 2.0


class Discovery:
    """Finds replicas for pools, from `start` to `close`. `observe` is told of each refresh."""

    def __init__(
        self,
        pools: Pools,
        session: aiohttp.ClientSession,
        chance: random.Random,
        clock: Clock,
        *,
        observe: Observe,
    ) -> None:
        self._pools = pools
        self._session = session
        self._chance = chance
        self._clock = clock
        self._observe = observe
        self._followed: dict[Pool, Following] = {}
        self._closed = False
        self._tasks: dict[Following, asyncio.Task[None]] = {}

    @property
    def ages_s(self) -> Iterable[tuple[str, float]]:
        """How long ago each pool's source last said what there is, or began; from any thread."""
        now = self._clock.monotonic()
        return [(pool.name, max(now - one.good_at, 0.0)) for pool, one in [*self._followed.items()]]

    async def start(self) -> None:
        """Begin to find, and wait a moment at most until every source has answered or failed."""
        self._pools.follow(self._follow)
        first = [asyncio.create_task(one.told.wait()) for one in self._followed.values()]
        if first:
            _, late = await asyncio.wait(first, timeout=FIRST_WITHIN_S)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """End all that is under way, and begin nothing any more, whoever comes."""
        self._closed = True
        for pool in [*self._followed]:
            self._stop(pool)
        await background.end(*self._tasks.values())

    def _follow(self, pool: Pool) -> None:
        if self._closed:
            return
        followed = self._followed.get(pool)
        if (None if followed is None else followed.entry) == pool.discovery:
            return
        self._stop(pool)
        entry = pool.discovery
        if entry is not None:
            self._begin(pool, entry)

    def _begin(self, pool: Pool, entry: DiscoveryEntry) -> None:
        one = Following(pool, entry, self._source(entry), chance=self._chance, clock=self._clock, observe=self._observe)
        self._followed[pool] = one
        self._tasks[one] = task = background.begin(one.run, name=f"discovery of {pool.name}")
        task.add_done_callback(lambda _: self._tasks.pop(one))

    def _stop(self, pool: Pool) -> None:
        followed = self._followed.pop(pool, None)
        if followed is not None:
            followed.stopped = True
            if followed in self._tasks:
                self._tasks[followed].cancel()

    def _source(self, entry: DiscoveryEntry) -> Source:
        if entry.dns is not None:
            return DnsSource(entry.dns, self._clock)
        if entry.kubernetes is not None:
            return KubernetesSource(entry.kubernetes, self._session, self._chance)
        assert entry.file is not None, "a DiscoveryEntry has exactly one kind"
        return FileSource(entry.file)
