"""The measuring: every round takes each figure of all proxies one after another, so that noise meets all alike."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from bench.calls import Call, Calls
from bench.load import ClosedLoop, Count, added_latency
from bench.processes import cpu_s, rss_mib

Measure = Literal[
    "small", "large", "event", "burst", "p50", "p99", "rss",
    "delay50", "delay99", "memory", "busy",
    "store", "scripts", "trips", "rate",
]  # fmt: skip

_REQUEST_S = 1.2
_CONNECTIONS = 32
_BURST_S = 1.2
_BURST_STREAMS = 16
# A paced stream lasts 1.3 s: two of them on each connection.
_PACED_S = 2.0
_PACED_STREAMS = 64
_PAIRS = 100
_PAIRS_PER_S = 50
# What a proxy does behind its answers (settling, log lines) belongs to them.
_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that runs: where it listens, and the process whose tree is measured."""

    name: str
    port: int
    pid: int


@dataclass(slots=True)
class Figures:
    """One proxy's figures, a value for each round; CPU and latency in microseconds, memory in MiB.

    Of many streams: `memory` in KiB for each, `busy` in percent of a core for engine and load. Of the limiter: `store`
    is the store's CPU, `scripts` and `trips` are how many a call took of it, `rate` is calls a second.
    """

    values: dict[Measure, list[float]] = field(default_factory=dict)
    answers: Count = field(default_factory=Count)

    def add(self, measure: Measure, value: float) -> None:
        self.values.setdefault(measure, []).append(value)

    def count(self, answers: Count) -> None:
        self.answers.good += answers.good
        self.answers.bad += answers.bad


class Rounds:
    """A run of so many rounds over `proxies`, all before the engine at port `engine`."""

    def __init__(self, proxies: Iterable[Running], calls: Calls, *, engine: int) -> None:
        self.figures = {proxy.name: Figures() for proxy in proxies}
        self._proxies = list(proxies)
        self._calls = calls
        self._engine = engine

    async def run(self, rounds: int) -> None:
        steps: tuple[Callable[[Running], Awaitable[None]], ...] = (
            lambda proxy: self._closed(proxy, "small", self._calls.small, connections=_CONNECTIONS, seconds=_REQUEST_S),
            lambda proxy: self._closed(proxy, "large", self._calls.large, connections=_CONNECTIONS, seconds=_REQUEST_S),
            lambda proxy: self._closed(proxy, "event", self._calls.paced, connections=_PACED_STREAMS, seconds=_PACED_S),
            lambda proxy: self._closed(proxy, "burst", self._calls.burst, connections=_BURST_STREAMS, seconds=_BURST_S),
            self._latency,
        )
        for number in range(rounds):
            began = asyncio.get_running_loop().time()
            turn = number % len(self._proxies)
            for step in steps:
                for proxy in self._proxies[turn:] + self._proxies[:turn]:
                    await step(proxy)
            for proxy in self._proxies:
                self.figures[proxy.name].add("rss", rss_mib(proxy.pid))
            took = asyncio.get_running_loop().time() - began
            print(f"round {number + 1} of {rounds}: {took:.0f} s", file=sys.stderr)

    async def _closed(self, proxy: Running, measure: Measure, call: Call, *, connections: int, seconds: float) -> None:
        """Measure CPU for each request, or for each part of a stream."""
        load = ClosedLoop(proxy.port, connections=connections)
        await load.warm(self._calls.small)
        await asyncio.sleep(_SETTLE_S)
        before = cpu_s(proxy.pid)
        answers = await load.run(call, seconds=seconds)
        await asyncio.sleep(_SETTLE_S)
        used = cpu_s(proxy.pid) - before
        load.close()
        figures = self.figures[proxy.name]
        figures.count(answers)
        if answers.good:
            figures.add(measure, used * 1e6 / (answers.good * call.parts))

    async def _latency(self, proxy: Running) -> None:
        added, answers = await added_latency(
            self._engine, proxy.port, self._calls.small, rate=_PAIRS_PER_S, pairs=_PAIRS
        )
        figures = self.figures[proxy.name]
        figures.count(answers)
        figures.add("p50", added.p50_us)
        figures.add("p99", added.p99_us)
