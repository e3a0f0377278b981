"""Stores for the model to be held against: each tells which scripts it ran, when, and for which call.

Several gateways share one store, each through a wire of its own that can lose replies and be cut for good.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from importlib import resources
from typing import Any, Protocol, cast

import redis
from fakeredis import TcpFakeServer
from fakeredis._clients._tcp_server import TCPFakeRequestHandler

from gateway import config
from gateway.admission.ledger.memory import MemoryLedger
from gateway.admission.ledger.posting import Posting
from gateway.admission.memory import MemoryStore
from gateway.admission.redis.store import RedisStore
from gateway.admission.reservation import Answer, Reservation, Settlement
from gateway.admission.store import Store
from gateway.clock import SystemClock
from tests.limit_model import Does, Step
from tests.limiting import LUA_CLOCK, PROBE, RETENTION_S, SECOND, Remembering, SetClock
from tests.store_proxy import StoreProxy, proxy_before

TIMEOUT_S = 0.05
PATIENT_S = 10.0

# Each script asks once what time it is, and what it is then told stands in a list, in the order in which scripts ran.
TOLD = """
local time_of_store = now_us
local function now_us()
  local now, does, unseen = time_of_store(), 'reserve', '0'
  if #ARGV == 2 then
    does = 'renew'
  elseif string.find(ARGV[1], ' ', 1, true) then
    does, unseen = 'settle', ARGV[3 * (#KEYS - 1) + 4]
  end
  local call = string.match(KEYS[1], ':call:(.*)$')
  server.call('RPUSH', 'test:told', string.format('%s %s %.0f %s', does, call, now, unseen))
  return now
end
"""


async def nothing() -> None:
    """Where there is no wire, none is cut."""


@dataclass(eq=False)
class Member:
    """One gateway's way to the store. `wire` is None where there is none; `cut` ends it for good."""

    store: Store
    observer: Remembering
    wire: StoreProxy | None = None
    cut: Callable[[], Awaitable[None]] = nothing


class Stores(Protocol):
    """One store. `real`: its time is the server's own, and so is what expires."""

    real: bool
    lease_us: int

    async def join(self, *, timeout_s: float = TIMEOUT_S) -> Member:
        """Give another gateway its way to the store."""

    def told(self) -> list[Step]:
        """Return what it ran since this was last asked."""

    async def wait(self, us: int) -> None:
        """Let time pass."""

    def now_us(self) -> int:
        """Return its time."""

    def lasting(self) -> list[str]:
        """Return its keys that would stay for ever."""

    def events(self) -> Counter[tuple[str, str]] | None:
        """Return which calls its stream tells of, and as what; None where there is none."""


class Told(Store):
    """A memory store that tells what it does. Nothing of it can be lost on the way."""

    up = True
    pending = 0
    may_forget = False

    def __init__(self, clock: SetClock, lease_us: int) -> None:
        self.steps: list[Step] = []
        self._clock = clock
        self._store = MemoryStore(clock, lease_s=lease_us / SECOND, ledger=MemoryLedger(retention_s=RETENTION_S))

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def reserve(self, reservation: Reservation) -> Answer:
        self.steps.append(Step("reserve", reservation.call_id, self._clock.us))
        return await self._store.reserve(reservation)

    def settle(self, settlement: Settlement) -> None:
        self.steps.append(Step("settle", settlement.call_id, self._clock.us, settlement.uncertain))
        self._store.settle(settlement)

    def note(self, settlement: Settlement) -> None:
        self._store.note(settlement)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        self.steps += [Step("renew", one.call_id, self._clock.us) for one in reservations]
        await self._store.renew(reservations)

    def ledger(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        return self._store.ledger(tenant, since, until)


class InMemory(Stores):
    """One store that all gateways of this process share."""

    real = False

    def __init__(self) -> None:
        self.lease_us = 30 * SECOND
        self._clock = SetClock()
        self._store = Told(self._clock, self.lease_us)

    async def join(self, *, timeout_s: float = 0) -> Member:  # noqa: ARG002 it never waits
        return Member(self._store, Remembering())

    def told(self) -> list[Step]:
        steps, self._store.steps = self._store.steps, []
        return steps

    async def wait(self, us: int) -> None:
        self._clock.us += us

    def now_us(self) -> int:
        return self._clock.us

    def lasting(self) -> list[str]:
        return []

    def events(self) -> None:
        return None


class OnServer(Stores):
    """A server. A `real` one keeps its own time; another is told what time it is, and which keys have run out."""

    def __init__(self, port: int, stack: AsyncExitStack, *, real: bool) -> None:
        self.real = real
        self.lease_us = SECOND // 5 if real else 30 * SECOND
        self._port = port
        self._stack = stack
        self._client = stack.enter_context(redis.Redis(port=port, decode_responses=True))
        self._client.flushall()
        self._clock = SetClock()
        self._client.set("test:now", self._clock.us)
        own_clock = (
            "local server = redis\n" + resources.files("gateway.admission.redis").joinpath("clock.lua").read_text()
        )
        self._lua_clock = (own_clock if real else LUA_CLOCK) + TOLD

    async def join(self, *, timeout_s: float = TIMEOUT_S) -> Member:
        until_cut = await self._stack.enter_async_context(AsyncExitStack())
        wire = await until_cut.enter_async_context(proxy_before(self._port))
        observer = Remembering()
        store = RedisStore(
            wire.url,
            SystemClock(),
            timeout_s=timeout_s,
            lease_s=self.lease_us / SECOND,
            retention_s=RETENTION_S,
            observer=observer,
            events=config.Events(),
            lua_clock=self._lua_clock,
        )
        store.start()
        return Member(store, observer, wire, until_cut.aclose)

    def told(self) -> list[Step]:
        with self._client.pipeline() as pipeline:
            lines: list[str] = pipeline.lrange("test:told", 0, -1).delete("test:told").execute()[0]
        return [_step(line) for line in lines]

    async def wait(self, us: int) -> None:
        if self.real:
            await asyncio.sleep(us / SECOND)
        else:
            self._clock.us += us
            self._client.set("test:now", self._clock.us)

    def now_us(self) -> int:
        if not self.real:
            return self._clock.us
        seconds, us = self._client.time()
        return int(seconds) * SECOND + int(us)

    def lasting(self) -> list[str]:
        with self._client.pipeline() as pipeline:
            if not self.real:
                # In one step: a gateway may be giving back meanwhile.
                pipeline.keys("gw:*")
                pipeline.hkeys("test:ends")
                keys, ends = pipeline.execute()
                return sorted(set(keys) - set(ends))
            keys = list(self._client.scan_iter("gw:*", count=1000))
            for key in keys:
                pipeline.ttl(key)
            return [key for key, ttl in zip(keys, pipeline.execute(), strict=True) if ttl == -1]

    def events(self) -> Counter[tuple[str, str]]:
        events = [event for _, event in self._client.xrange("gw:events")]
        return Counter((event["call"], event["event"]) for event in events if event["key"] != PROBE.key)


def _step(line: str) -> Step:
    does, call, now_us, unseen = line.split(" ")
    return Step(cast(Does, does), call, int(now_us), unseen != "0")


class _Prompt(TCPFakeRequestHandler):
    disable_nagle_algorithm = True  # else each reply waits 40 ms for the acknowledgement of the one before


@contextmanager
def fake_server() -> Iterator[int]:
    """Run fakeredis behind a real socket; its port comes out."""
    server: Any = TcpFakeServer(("127.0.0.1", 0), server_type="valkey")
    server.RequestHandlerClass = _Prompt
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
