"""Who looks after replicas: one task for each, and none that nobody would end."""

import asyncio
import random
from pathlib import Path

import aiohttp

from gateway.clock import SystemClock
from gateway.config import PoolEntry
from gateway.routing.discovery.discovery import Discovery
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools
from gateway.routing.replica import Replica
from gateway.routing.visits import Visits

URLS = ("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000")


def entry_of(*urls: str) -> PoolEntry:
    return PoolEntry.model_validate({"replicas": urls})


async def test_replicas_that_come_are_visited_until_visits_have_ended() -> None:
    pools = Pools({"p": entry_of(URLS[0])}, random.Random(1), SystemClock())
    visited: list[str] = []

    async def visit(_pool: Pool, replica: Replica) -> None:
        visited.append(replica.url)
        await asyncio.Event().wait()

    visits = Visits(pools, visit, what="trial")
    visits.start()
    pools.configure({"p": entry_of(*URLS[:2])})
    await asyncio.sleep(0)
    assert visited == list(URLS[:2])
    await visits.close()
    pools.configure({"p": entry_of(*URLS)})  # discovery and orders end later than probes
    await asyncio.sleep(0)
    assert visited == list(URLS[:2])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_pools_that_change_are_not_followed_once_discovery_has_ended(tmp_path: Path) -> None:
    listed = tmp_path / "replicas.yaml"
    listed.write_text(f"[{URLS[0]}]")
    entry = PoolEntry.model_validate({"discovery": {"file": {"path": str(listed)}}})
    pools, before = Pools({"p": entry}, random.Random(1), SystemClock()), asyncio.all_tasks()
    async with aiohttp.ClientSession() as session:
        discovery = Discovery(pools, session, random.Random(1), SystemClock(), observe=lambda _pool, _result: None)
        await discovery.start()
        assert [replica.url for replica in pools["p"].replicas] == [URLS[0]]
        await discovery.close()
        pools.configure({"p": entry, "q": entry})  # a reload that was under way
        assert asyncio.all_tasks() == before
