"""The measuring of many streams at once: of each proxy in turn, what they cost in CPU, memory and delay.

Delay is taken event by event, from the engine's writing to the load's reading. The same straight from the engine is
taken off it: what remains is what the proxy adds.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bench.calls import Calls
from bench.crowd import Crowd
from bench.load import ClosedLoop, Count, percentile
from bench.metronome import QUIET_MS
from bench.processes import cpu_s, rss_mib
from bench.rounds import Figures, Running
from bench.stamped import PAUSE_MS
from bench.stand import Stand

# The row of the streams that go straight from the engine to the load.
STRAIGHT = "no proxy"

_WARMING_CONNECTIONS = 16
_WARMING_S = 0.2
# An engine that falls so far behind its own pace is not what a measurement may wait for.
_LATE_S = 0.5
# In the middle of the time when all streams are open and quiet.
_LOOK_AFTER_S = QUIET_MS / 2000


@dataclass(frozen=True, slots=True)
class Size:
    """How many streams at once, and for how many seconds each brings events."""

    streams: int
    seconds: float

    @property
    def timed(self) -> int:
        """How many events of a stream tell their time."""
        return int(self.seconds * 1000) // PAUSE_MS


FULL = Size(streams=1000, seconds=60)
QUICK = Size(streams=20, seconds=2)


class Streams:
    """Rounds of `size`, each on a fresh stand: memory that a proxy has kept would hide what the next streams take."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._figures: dict[str, Figures] = {}

    @property
    def figures(self) -> Mapping[str, Figures]:
        """The figures so far; under `STRAIGHT` those without a proxy."""
        return self._figures

    async def round(self, number: int, stand: Stand) -> None:
        """Measure each proxy of a stand once, in every round another one first."""
        began = asyncio.get_running_loop().time()
        straight = await self._watch(Running(STRAIGHT, stand.engine.port, stand.engine.pid), stand)
        turn = number % len(stand.proxies)
        for proxy in stand.proxies[turn:] + stand.proxies[:turn]:
            p50, p99 = await self._watch(proxy, stand)
            self._figures[proxy.name].add("p50", p50 - straight[0])
            self._figures[proxy.name].add("p99", p99 - straight[1])
        took = asyncio.get_running_loop().time() - began
        print(f"round {number + 1}: {took:.0f} s", file=sys.stderr)

    async def _watch(self, proxy: Running, stand: Stand) -> tuple[float, float]:
        """Take a proxy's figures; return p50 and p99 of the delay, in microseconds."""
        figures = self._figures.setdefault(proxy.name, Figures())
        await _warm(proxy.port, stand.calls)
        memory_mib = rss_mib(proxy.pid)
        crowd = Crowd(proxy.port, stand.token, streams=self._size.streams, timed=self._size.timed)
        if not await crowd.open():
            print(f"{proxy.name}: not all streams were open in time", file=sys.stderr)
        await crowd.until(0)
        proxy_s, ends_s = cpu_s(proxy.pid), _ends_s(stand)
        await crowd.until(self._size.seconds + _LOOK_AFTER_S)
        proxy_s, ends_s = cpu_s(proxy.pid) - proxy_s, _ends_s(stand) - ends_s
        figures.add("busy", ends_s / self._size.seconds * 100)
        if proxy.name != STRAIGHT and crowd.delays:
            figures.add("event", proxy_s * 1e6 / len(crowd.delays))
            figures.add("memory", (rss_mib(proxy.pid) - memory_mib) * 1024 / self._size.streams)
        figures.count(_told(proxy.name, await crowd.end(), late_s=crowd.late_s))
        p50, p99 = (percentile(crowd.delays, percent) / 1000 for percent in (50, 99))  # with those that came late
        figures.add("delay50", p50)
        figures.add("delay99", p99)
        return p50, p99


def _ends_s(stand: Stand) -> float:
    """Return the CPU time of engine and load."""
    return cpu_s(stand.engine.pid) + time.process_time()


def _told(name: str, ends: Counter[str | None], *, late_s: float) -> Count:
    """Tell what was wrong with how many streams, and if the engine was late; return the count of streams."""
    if late_s > _LATE_S:
        print(f"{name}: the engine was {late_s:.1f} s late: this machine does too much else", file=sys.stderr)
    for wrong, count in ends.items():
        if wrong is not None:
            print(f"{name}: {count} streams: {wrong}", file=sys.stderr)
    return Count(good=ends[None], bad=ends.total() - ends[None])


async def _warm(port: int, calls: Calls) -> None:
    """Let a proxy do once, and more than once, what it will do for all streams."""
    load = ClosedLoop(port, connections=_WARMING_CONNECTIONS)
    await load.warm(calls.small)
    await load.run(calls.burst, seconds=_WARMING_S)
    load.close()
