"""One run: everything is started, loaded, harmed, healed, looked at and judged."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from gateway.clock import SystemClock
from gateway.config import file
from tests.chaos import answers, books, configs, events, quotas, remains, spending
from tests.chaos.calls import planned
from tests.chaos.client import Client, Seen
from tests.chaos.engines import EngineSlot
from tests.chaos.evidence import Account, Evidence, Violation
from tests.chaos.faults import Faults
from tests.chaos.gateways import GatewaySlot
from tests.chaos.plans import CLIENTS, KEYS, MODELS, TENANTS, WORKERS, limits
from tests.chaos.topologies import TOPOLOGIES, Topology
from tests.processes import Processes, until
from tests.zygote import running_zygote

# Of a short run too, the longest time that a store is away is well within it.
LEASE_S = 6.0
SHORT_LEASE_S = 3.0
SHORT_S = 20.0
TOKENS_PER_S = 120.0
PROGRESS_EVERY_S = 5.0
SETTLED_WITHIN_S = 30.0
_BLIND = 0.05
_GAUGES = (
    "gateway_requests_in_flight",
    "gateway_streams_open",
    "gateway_replica_in_flight",
    "gateway_waiting_calls",
    "gateway_journal_pending",
)


@dataclass(frozen=True)
class Verdict:
    """What was found, and of what."""

    evidence: Evidence
    violations: list[Violation]


async def run(topology: str, directory: Path, *, seconds: float, seed: int, say: Callable[[str], None]) -> Verdict:
    """Run for so long and judge. Logs, journals, accounts and configs are left in `directory`."""
    with TOPOLOGIES[topology]() as store, running_zygote() as zygote:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            processes = Processes(directory, session, zygote)
            try:
                lease_s = LEASE_S if seconds > SHORT_S else SHORT_LEASE_S
                return await _Run(store, directory, processes, lease_s=lease_s, seed=seed, say=say).whole(seconds)
            finally:
                await processes.stop()


class _Run:
    def __init__(
        self,
        store: Topology,
        directory: Path,
        processes: Processes,
        *,
        lease_s: float,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._processes = processes
        self._seed = seed
        self._lease_s = lease_s
        self._say = say
        self._engines = [
            EngineSlot(processes, directory, name=name, model=model, pace=TOKENS_PER_S)
            for model, pools in MODELS.items()
            for names in pools.values()
            for name in names
        ]
        self._journal = directory / "journal"
        self._journal.mkdir()
        self._limits = limits(store.url, str(self._journal), lease_s=self._lease_s)
        self._gateways = [
            GatewaySlot(processes, place, self._config(workers), workers=workers)
            for place, workers in enumerate(WORKERS)
        ]
        self._faults = Faults(seed, engines=self._engines, gateways=self._gateways, topology=store, lease_s=lease_s)
        self._seen: list[Seen] = []
        self._began = SystemClock().now()

    async def whole(self, seconds: float) -> Verdict:
        tokens = {(tenant, key): self._processes.token(tenant=tenant, key=key) for tenant in TENANTS for key in _keys()}
        await asyncio.gather(*[slot.start() for slot in self._engines])
        await asyncio.gather(*[slot.start() for slot in self._gateways])
        self._say(f"{len(self._gateways)} gateways and {len(self._engines)} engines run")
        loading = asyncio.Event()
        client = Client(self._processes.session, tokens)
        calls = planned(self._seed)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                chance = Random(f"{self._seed}:client {number}")
                group.create_task(self._call(client, calls, chance, loading))
            progress = group.create_task(self._progress())
            await self._faults.run(seconds)
            loading.set()
            progress.cancel()
        self._say("all is whole again; waiting for it to settle")
        return await self._judged()

    async def _call(self, client: Client, calls: Any, chance: Random, over: asyncio.Event) -> None:
        while not over.is_set():
            # As a balancer does, which notices a gateway that is gone late.
            up = [slot for slot in self._gateways if slot.life.ending == "runs" or chance.random() < _BLIND]
            slot = chance.choice(up or self._gateways)
            life = slot.life
            seen = Seen(next(calls), slot.place, life.number)
            self._seen.append(seen)
            await client.send(seen, life.running.url)
            await asyncio.sleep(chance.uniform(0, 0.03))

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            faults = Counter(fault.name for fault in self._faults.happened)
            endings = Counter(seen.ending for seen in self._seen)
            told = ", ".join(f"{count} {name}" for name, count in sorted(endings.items()))
            self._say(f"{len(self._seen)} calls: {told}; {sum(faults.values())} faults")

    async def _judged(self) -> Verdict:
        gauges = await self._settled()
        ledger, outdated = await self._ledger(), await self._outdated()
        await asyncio.sleep(self._lease_s)
        keys = await asyncio.to_thread(self._store.keys)
        await asyncio.gather(*[slot.stop() for slot in self._gateways])
        lives = [life for slot in self._gateways for life in slot.lives]
        for life in lives:
            life.read_log()
        evidence = Evidence(
            seen=self._seen,
            lives=lives,
            attempts=[attempt for slot in self._engines for attempt in slot.attempts()],
            faults=self._faults.happened,
            ledger=ledger,
            keys=keys,
            gauges=gauges,
            outdated=outdated,
            journals={path.name: path.stat().st_size for path in self._journal.iterdir()},
            two_steps=self._store.two_steps,
            one_month=_day(self._began).month == _day(SystemClock().now()).month,
        )
        settings = file.load(self._directory / "config-0.yaml").limits
        violations = [
            *books.judge(evidence),
            *events.judge(evidence),
            *quotas.judge(evidence, settings),
            *spending.judge(evidence, lease_s=self._lease_s),
            *answers.judge(evidence),
            *remains.judge(evidence),
        ]
        return Verdict(evidence, violations)

    async def _settled(self) -> dict[str, float]:
        """Wait until nothing is in flight any more; return what still is when it takes too long."""
        gauges: dict[str, float] = {}

        async def none() -> bool:
            for slot in self._gateways:
                samples = await slot.life.running.metrics(self._processes.session)
                gauges.update({f"{name} of gateway {slot.place}": samples.total(name) for name in _GAUGES})
            return not any(gauges.values())

        with suppress(TimeoutError):
            await until(none, SETTLED_WITHIN_S)
        return gauges

    async def _outdated(self) -> list[str]:
        """Return the gateways that have not taken on the config that is there."""
        found = []
        for slot in self._gateways:
            samples = await slot.life.running.metrics(self._processes.session)
            loaded_s = samples.total("gateway_config_loaded_timestamp_seconds")
            if loaded_s < slot.written_s or samples.total("gateway_config_reload_failed"):
                found.append(f"{slot.life.name}: loaded {slot.written_s - loaded_s:.1f} s before it was written")
        return found

    async def _ledger(self) -> dict[Account, Counter[str]]:
        first = _day(self._began).date().isoformat()
        last = (_day(SystemClock().now()).date() + timedelta(days=1)).isoformat()
        query = f"since={first}&until={last}&group_by=tenant,key,model"
        url = f"{self._gateways[0].life.running.admin_url}/admin/usage?{query}"
        async with self._processes.session.get(url) as response:
            rows = (await response.json())["data"]
        figures = ("calls", "refused", "prompt_tokens", "completion_tokens", "cached_tokens", "estimated_tokens")
        return {
            (row["tenant"], row["key"], row["model"]): Counter({name: row[name] for name in figures}) for row in rows
        }

    def _config(self, workers: int) -> Path:
        return self._processes.config(**configs.sections(self._limits, self._engines, workers=workers))


def _keys() -> list[str]:
    return [f"key-{number}" for number in range(KEYS)]


def _day(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
