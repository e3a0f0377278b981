"""The load of a fixed mean rate: calls leave at random moments, whether or not those before them were answered.

Latency counts from when a call was to leave: a load that falls behind cannot hide it.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from time import perf_counter
from types import TracebackType
from typing import Self

from bench.calls import Call
from bench.load import Connection, Count, connect

# Opened at once, for each port; more as they are needed.
_CONNECTIONS = 16
_GRACE_S = 20.0


class PacedLoad:
    """`rate` calls a second in all, to `ports` in turn. `took_us` has the latency of each that was right.

    `lasted_s` is how long the last run took from its first call to its last answer.
    """

    def __init__(self, ports: Sequence[int], *, rate: float, seed: int) -> None:
        self.took_us: list[float] = []
        self.lasted_s = 0.0
        self._ports = ports
        self._rate = rate
        self._chance = Random(seed)
        self._idle: dict[int, list[Connection]] = {port: [] for port in ports}

    async def __aenter__(self) -> Self:
        for port, idle in self._idle.items():
            idle += [await connect(port) for _ in range(_CONNECTIONS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()

    async def run(self, call: Call, *, seconds: float) -> Count:
        """Send calls for so many seconds, and wait for their answers."""
        count = Count()
        began = due = perf_counter()
        async with asyncio.timeout(seconds + _GRACE_S), asyncio.TaskGroup() as group:
            number = 0
            while (due := due + self._chance.expovariate(self._rate)) < began + seconds:
                await asyncio.sleep(max(due - perf_counter(), 0))
                group.create_task(self._send(self._ports[number % len(self._ports)], call, due, count))
                number += 1
        self.lasted_s = perf_counter() - began
        return count

    async def _send(self, port: int, call: Call, due: float, count: Count) -> None:
        idle = self._idle[port]
        connection = idle.pop() if idle else await connect(port)
        if await connection.ask(call):
            count.good += 1
            self.took_us.append((perf_counter() - due) * 1e6)
            idle.append(connection)
        else:
            count.bad += 1
            connection.close()
