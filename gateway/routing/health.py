"""Active health: each replica is asked in its own task, so one that hangs delays no other."""

import asyncio
import logging
import random

import aiohttp

from gateway.config import Health
from gateway.routing.ask import ask
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools
from gateway.routing.replica import Replica
from gateway.routing.visits import Visits

_log = logging.getLogger(__name__)

# A probe that takes longer than this has failed; an engine's health path answers at once or not at all.
PROBE_TIMEOUT_S = 2.0


class Prober:
    """Marks replicas down after `unhealthy_after` failed probes in a row, up after `healthy_after` good ones."""

    def __init__(self, pools: Pools, session: aiohttp.ClientSession, chance: random.Random) -> None:
        self._session = session
        self._chance = chance
        self._visits = Visits(pools, self._watch, what="health")

    def start(self) -> None:
        """Begin to probe every replica of every pool, and from then on those that come."""
        self._visits.start()

    async def close(self) -> None:
        """Stop all probes."""
        await self._visits.close()

    async def _watch(self, pool: Pool, replica: Replica) -> None:
        streak = Streak(up=replica.up)
        while True:
            up = streak.note(pool.health, good=await self._probe(pool.health, replica))
            if up != replica.up:
                replica.up = up
                replica.fingerprint = None  # it may come back as another build
                if up:
                    pool.warm_up(replica)
                pool.look()
                _log.warning("replica %s of pool %s is %s", replica.name, pool.name, "up" if up else "down")
            # Jitter keeps the probes of many gateways from falling together.
            await asyncio.sleep(pool.health.interval * self._chance.uniform(0.8, 1.2))

    async def _probe(self, health: Health, replica: Replica) -> bool:
        timeout_s = min(PROBE_TIMEOUT_S, max(health.interval, 0.5))
        try:
            async with ask(self._session, replica, health.path, timeout_s=timeout_s) as response:
                return response.status == 200  # noqa: PLR2004 the one status that says healthy
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


class Streak:
    """Counts probes that agree; decides, from one result at a time, whether a replica is up."""

    def __init__(self, *, up: bool) -> None:
        self._up = up
        self._against = 0

    def note(self, health: Health, *, good: bool) -> bool:
        """Take in one probe's result and return whether the replica now counts as up."""
        self._against = 0 if good == self._up else self._against + 1
        needed = health.healthy_after if good else health.unhealthy_after
        if self._against >= needed:
            self._up, self._against = good, 0
        return self._up
