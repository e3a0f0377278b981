"""The load of many streams at once: all are opened before their common start, and read to their end."""

import asyncio
from collections import Counter
from time import perf_counter_ns
from typing import cast

import httptools

from bench.calls import stamped
from bench.stamped import Reading

# How many streams are opened at a time: few enough for any proxy's accept queue.
_OPENED_AT_ONCE = 16
# From the start of opening to the common start.
_OPENING_S = 0.2
_OPENING_EACH_S = 0.004
# What has not opened in this time, or has not ended so long after the last event was due, counts as bad.
_GRACE_S = 20.0
_OK = 200
_NS_PER_S = 1_000_000_000


class Listener(asyncio.Protocol):
    """One stream. `opened` is whether its first event came, `ended` what was wrong with it, if anything."""

    def __init__(self, request: bytes, reading: Reading, start_ns: int) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[str | None] = loop.create_future()
        self._request = request
        self._reading = reading
        self._start_ns = start_ns
        self._now_ns = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the protocol's signature
        self._transport = None
        self._end(f"cut off after {self._reading.events} events")

    def data_received(self, data: bytes) -> None:
        self._now_ns = perf_counter_ns() - self._start_ns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("not HTTP")

    def on_body(self, data: bytes) -> None:
        if (status := self._parser.get_status_code()) != _OK:
            self._end(f"status {status}: {data.decode(errors='replace')}")
            return
        self._reading.feed(data, self._now_ns)
        if not self._reading.right:
            self._end("wrong bytes")
        elif self._reading.events and not self.opened.done():
            self.opened.set_result(True)

    def on_message_complete(self) -> None:
        self._end(None if self._reading.whole else f"ended after {self._reading.events} events")

    def _end(self, wrong: str | None) -> None:
        if not self.opened.done():
            self.opened.set_result(False)
        if not self.ended.done():
            self.ended.set_result(wrong)
        if wrong is not None:
            self.close()


class Crowd:
    """So many streams of so many timed events each, through one port of this machine, for the client with `token`.

    `delays` are nanoseconds, one for each event that came. `start_ns` is when the first events are due.
    """

    def __init__(self, port: int, token: str, *, streams: int, timed: int) -> None:
        self.delays: list[int] = []
        self.start_ns = perf_counter_ns() + int((_OPENING_S + streams * _OPENING_EACH_S) * _NS_PER_S)
        self._port = port
        self._readings: list[Reading] = []
        self._listeners = [self._listener(token, number, timed) for number in range(streams)]

    @property
    def late_s(self) -> float:
        """How late the engine was with the events that came last."""
        return max(reading.late_ns for reading in self._readings) / _NS_PER_S

    async def open(self) -> bool:
        """Open all streams; return whether all are open before the start."""
        few = asyncio.Semaphore(_OPENED_AT_ONCE)
        opened = await asyncio.gather(*(self._open(listener, few) for listener in self._listeners))
        return all(opened) and perf_counter_ns() < self.start_ns

    async def until(self, since_start_s: float) -> None:
        """Wait for a time after the start."""
        await asyncio.sleep(since_start_s - (perf_counter_ns() - self.start_ns) / _NS_PER_S)

    async def end(self) -> Counter[str | None]:
        """Wait for the end of all streams, and hang up; return how many had what wrong with them, None for nothing."""
        ended = [listener.ended for listener in self._listeners]
        await asyncio.wait(ended, timeout=_GRACE_S)
        for listener in self._listeners:
            listener.close()
        return Counter(one.result() if one.done() else "not at its end in time" for one in ended)

    def _listener(self, token: str, number: int, timed: int) -> Listener:
        request, shape = stamped(token, number, start_ns=self.start_ns, timed=timed)
        self._readings.append(Reading(shape, number, self.delays))
        return Listener(request, self._readings[-1], self.start_ns)

    async def _open(self, listener: Listener, few: asyncio.Semaphore) -> bool:
        async with few:
            try:
                async with asyncio.timeout(_GRACE_S):
                    await asyncio.get_running_loop().create_connection(lambda: listener, "127.0.0.1", self._port)
                    return await listener.opened
            except (OSError, TimeoutError):
                listener.connection_lost(None)
                return False
