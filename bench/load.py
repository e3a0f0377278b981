"""The load: calls over keep-alive connections, every answer checked by its status and its length.

Closed loops for CPU figures; for latency a low fixed rate, each proxied call paired with one to the engine itself.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import httptools

from bench.calls import Call

# After the end of a loop its last calls get this long; what is missing then counts as bad.
_GRACE_S = 20.0
_OK = 200


@dataclass(slots=True)
class Count:
    """Answers that were right, and answers that were not (or never came)."""

    good: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Added:
    """What a proxy adds to a call's latency, in microseconds."""

    p50_us: float
    p99_us: float


class Connection(asyncio.Protocol):
    """One keep-alive connection to a port of this machine; one call at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self._answered: asyncio.Future[bool] = self._loop.create_future()
        self._expected = 0
        self._length = 0

    async def ask(self, call: Call) -> bool:
        """Send a call; return whether its answer is right."""
        if self._transport is None:
            return False
        self._answered = self._loop.create_future()
        self._expected = call.length
        self._length = 0
        self._transport.write(call.request)
        return await self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the protocol's signature
        self._transport = None
        self._answer(right=False)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_body(self, data: bytes) -> None:
        self._length += len(data)

    def on_message_complete(self) -> None:
        self._answer(right=self._parser.get_status_code() == _OK and self._length == self._expected)

    def _answer(self, *, right: bool) -> None:
        if not self._answered.done():
            self._answered.set_result(right)


async def connect(port: int) -> Connection:
    """Open a connection. Raises `OSError`."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


class ClosedLoop:
    """So many connections to a port, each with the next call as soon as it has its answer."""

    def __init__(self, port: int, *, connections: int) -> None:
        self._port = port
        self._size = connections
        self._open: list[Connection] = []

    async def warm(self, call: Call) -> None:
        """Open all connections and send one call over each, at the same time: the proxy opens its own."""
        self._open = [await connect(self._port) for _ in range(self._size)]
        await asyncio.gather(*(connection.ask(call) for connection in self._open))

    async def run(self, call: Call, *, seconds: float) -> Count:
        """Start calls for so many seconds and wait for their answers."""
        count = Count()
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._repeat(index, call, until=until, count=count) for index in range(self._size)))
        return count

    def close(self) -> None:
        for connection in self._open:
            connection.close()

    async def _repeat(self, index: int, call: Call, *, until: float, count: Count) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until + _GRACE_S):
                while loop.time() < until:
                    if await self._open[index].ask(call):
                        count.good += 1
                    else:
                        count.bad += 1
                        self._open[index].close()
                        self._open[index] = await connect(self._port)
        except (TimeoutError, OSError):
            count.bad += 1


async def added_latency(engine: int, proxy: int, call: Call, *, rate: int, pairs: int) -> tuple[Added, Count]:
    """Send pairs of calls at a fixed rate, one to the engine and one through the proxy, and compare the two."""
    loop = asyncio.get_running_loop()
    count = Count()
    connections = [await connect(port) for port in (engine, proxy)]
    took: tuple[list[float], list[float]] = ([], [])
    due = loop.time()
    for _ in range(pairs):
        for connection, times in zip(connections, took, strict=True):
            due += 1 / rate / 2
            await asyncio.sleep(max(0.0, due - loop.time()))
            began = perf_counter()  # the loop's clock counts whole milliseconds
            if await connection.ask(call):
                count.good += 1
                times.append((perf_counter() - began) * 1e6)
            else:
                count.bad += 1
    for connection in connections:
        connection.close()
    direct, proxied = ([percentile(times, 50), percentile(times, 99)] for times in took)
    return Added(proxied[0] - direct[0], proxied[1] - direct[1]), count


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile; not a number of fewer than two values."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else float("nan")
