"""Asks engines for their own load where a pool goes by it: by default once a second each."""

import asyncio
import logging
import random

import aiohttp

from gateway.routing.ask import ask
from gateway.routing.engine_load import EngineLoad, read_load
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools
from gateway.routing.replica import Replica
from gateway.routing.visits import Visits

_log = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
# vLLM's text has 60 KB and grows with its histograms; what is larger than this is none.
_MAX_BYTES = 4 * 2**20
# After so many failures in a row the last figures say nothing any more.
_FORGET_AFTER = 3


class LoadPoller:
    """Keeps `Replica.load` fresh in the pools that go by it; where it cannot be had, it is None."""

    def __init__(self, pools: Pools, session: aiohttp.ClientSession, chance: random.Random) -> None:
        self._session = session
        self._chance = chance
        self._visits = Visits(pools, self._watch, what="load", wanted=lambda pool: pool.load is not None)

    def start(self) -> None:
        """Begin to ask."""
        self._visits.start()

    async def close(self) -> None:
        """Ask no more."""
        await self._visits.close()

    async def _watch(self, pool: Pool, replica: Replica) -> None:
        failures = 0
        try:
            while entry := pool.load:
                try:
                    replica.told(await self._ask(pool, entry.path, replica), now=pool.now())
                    failures = 0
                except (aiohttp.ClientError, TimeoutError, OSError, LookupError) as error:
                    failures += 1
                    if failures == _FORGET_AFTER:
                        replica.told(None)
                        why = str(error) or type(error).__name__
                        _log.warning("load of replica %s of pool %s cannot be read: %s", replica.name, pool.name, why)
                await asyncio.sleep(entry.interval * self._chance.uniform(0.8, 1.2))
        finally:
            replica.told(None)

    async def _ask(self, pool: Pool, path: str, replica: Replica) -> EngineLoad:
        """Return what the engine tells, or raise why it is not known."""
        async with ask(self._session, replica, path, timeout_s=_TIMEOUT_S) as response:
            if response.status != 200:  # noqa: PLR2004 the one status with figures
                raise LookupError(f"{path} answered {response.status}")
            text = bytearray()
            async for part in response.content.iter_any():
                text += part
                if len(text) > _MAX_BYTES:
                    raise LookupError(f"{path} has more than 4 MiB")
        load = read_load(bytes(text), pool.engine)
        if load is None:
            raise LookupError(f"{path} lacks what engines of kind {pool.engine} tell of their load")
        return load
