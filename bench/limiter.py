"""The measuring of the limiter: what limits in a shared store cost each call, in CPU, round trips and latency.

Two gateways share one store. The same paced load goes to two gateways that count in memory, and to two that have no
rules: what those cost less is the limiter's. Calls come at random moments at a fixed mean rate, as from many clients.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from bench.calls import Calls
from bench.load import percentile
from bench.paced import PacedLoad
from bench.processes import cpu_s
from bench.proxies import Proxy, limited
from bench.rounds import Figures, Running
from bench.stand import Stand

# What is compared, and of how many gateways each is.
KINDS = ("redis", "memory", "no rules")
GATEWAYS = 2
# The kind whose store's work is counted.
_SHARED = "redis"

# What goes over a connection to the store is counted in scripts: what scripts call is not.
_SCRIPT = "cmdstat_evalsha"
# One that reserves and one that settles.
_SCRIPTS_A_CALL = 2
_SETTLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """Calls a second to both gateways together, and for how many seconds."""

    rates: tuple[int, ...]
    seconds: float


FULL = Load(rates=(100, 500, 1000, 2000), seconds=10)
QUICK = Load(rates=(100, 300), seconds=1)


def proxies() -> list[Proxy]:
    """Return the gateways to run, all kinds of them."""
    return [
        limited(name_of(kind, number), store="redis" if kind == _SHARED else "memory", rules=kind != "no rules")
        for kind in KINDS
        for number in range(GATEWAYS)
    ]


def name_of(kind: str, number: int) -> str:
    return f"{kind.replace(' ', '-')}-{number}"


def row_of(kind: str, rate: int) -> str:
    """Return the name of a row: a kind at a rate."""
    return f"{kind}, {rate}/s"


class Limiter:
    """Rounds of `load`; `figures` has a row for each kind at each rate."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._figures = {row_of(kind, rate): Figures() for rate in load.rates for kind in KINDS}

    @property
    def figures(self) -> Mapping[str, Figures]:
        return self._figures

    async def round(self, number: int, stand: Stand) -> None:
        """Measure every kind at every rate, in every round another kind first."""
        began = asyncio.get_running_loop().time()
        turn = number % len(KINDS)
        for rate in self._load.rates:
            for kind in KINDS[turn:] + KINDS[:turn]:
                await self._measure(kind, rate, stand, seed=number)
        took = asyncio.get_running_loop().time() - began
        print(f"round {number + 1}: {took:.0f} s", file=sys.stderr)

    async def _measure(self, kind: str, rate: int, stand: Stand, *, seed: int) -> None:
        names = {name_of(kind, number) for number in range(GATEWAYS)}
        gateways = [proxy for proxy in stand.proxies if proxy.name in names]
        figures = self._figures[row_of(kind, rate)]
        async with PacedLoad([one.port for one in gateways], rate=rate, seed=seed) as load:
            await _warm(load, stand.calls)
            before = _used(gateways, stand)
            answers = await load.run(stand.calls.small, seconds=self._load.seconds)
            await asyncio.sleep(_SETTLE_S)
            used = [after - early for after, early in zip(_used(gateways, stand), before, strict=True)]
        figures.count(answers)
        if not answers.good:
            return
        cpu, store_cpu, scripts, trips = used
        figures.add("small", cpu * 1e6 / answers.good)
        figures.add("delay50", percentile(load.took_us, 50))
        figures.add("delay99", percentile(load.took_us, 99))
        figures.add("rate", answers.good / load.lasted_s)
        if kind == _SHARED:
            figures.add("store", store_cpu * 1e6 / answers.good)
            figures.add("scripts", scripts / answers.good)
            if scripts < _SCRIPTS_A_CALL * answers.good:
                print(f"{row_of(kind, rate)}: calls were decided without the store, which was late", file=sys.stderr)
            figures.add("trips", trips / answers.good)


async def _warm(load: PacedLoad, calls: Calls) -> None:
    """Have tokens, limits and connections known before anything is counted."""
    await load.run(calls.small, seconds=0.3)
    load.took_us.clear()
    await asyncio.sleep(_SETTLE_S)


def _used(gateways: Sequence[Running], stand: Stand) -> tuple[float, float, float, float]:
    """Return what was used so far: CPU of the gateways and of the store (s), scripts run, and times that it replied."""
    with redis.Redis(port=stand.store.port) as client:
        # Asking for it takes some replies too: a handful, among thousands.
        stats = client.info("all")
    assert isinstance(stats, dict)
    scripts = stats.get(_SCRIPT, {"calls": 0})["calls"]
    cpu = sum(cpu_s(gateway.pid) for gateway in gateways)
    return cpu, cpu_s(stand.store.pid), scripts, stats["total_writes_processed"]
