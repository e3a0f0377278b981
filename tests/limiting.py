"""What tests of admission share: limits by the line, an observer that remembers, stores whose time the test sets."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.admission.digest import digest
from gateway.admission.ledger.account import Account
from gateway.admission.ledger.memory import MemoryLedger
from gateway.admission.limit import Kind, Limit, Measure
from gateway.admission.memory import MemoryStore
from gateway.admission.permit import Permit
from gateway.admission.redis.store import RedisStore
from gateway.admission.redis.two_steps import InTwoSteps
from gateway.admission.reservation import Reservation
from gateway.admission.rules import EVERYBODY
from gateway.admission.store import Store, StoreUnavailable
from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S
from tests.store_cluster import StoreCluster
from tests.store_server import StoreServer

ACCOUNT = Account("acme", "key-1", "m", digest("acme"))
TAG = ACCOUNT.tag
# Whose calls only ask for levels, and are refused.
PROBE = Account("acme", "probe", "m", TAG)
LEASE_S = 30
RETENTION_S = 400 * 86_400

# 2026-11-29T12:00:00Z, in microseconds.
NOON_US = 1_795_953_600_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND

# A time that the test sets, and keys that live by it.
LUA_CLOCK = """
local server = redis
local function now_us() return tonumber(server.call('GET', 'test:now')) end
local function timed(run, name, key, ...)
  local ends = tonumber(server.call('HGET', 'test:ends', key) or '')
  if ends and ends <= now_us() then
    server.call('DEL', key)
    server.call('HDEL', 'test:ends', key)
    ends = nil
  end
  local words = {...}
  local ttl_ms = name == 'SET' and words[3] or name == 'PEXPIRE' and words[1]
  if ttl_ms then
    server.call('HSET', 'test:ends', key, string.format('%.0f', now_us() + ttl_ms * 1000))
  end
  if name == 'PTTL' then return ends and 1 or -1 end
  if name == 'PEXPIRE' then return 1 end
  if name == 'SET' then return run('SET', key, words[1]) end
  return run(name, key, ...)
end
local redis = {
  call = function(...) return timed(server.call, ...) end,
  pcall = function(...) return timed(server.pcall, ...) end,
}
"""

# The same, for keys that are to be in the slot of a call's.
LUA_CLOCK_IN_CLUSTER = "local tag = string.match(KEYS[1], '{.-}')\n" + LUA_CLOCK.replace(
    "'test:", "tag .. 'test:"
).replace("now'))", f"now') or '{NOON_US}')")


def limit(kind: Kind, figure: int, *, window_s: float = 60, shadow: bool = False, **changes: Any) -> Limit:
    """Return a limit of `figure` tokens in a window, or of calls at once; its key follows from all of that."""
    measure: Measure = "concurrency" if kind == "lease" else "tokens"
    window_us = round(window_s * SECOND) if kind == "bucket" else 0
    name = changes.pop("rule", f"{kind}-{figure}-{window_us}{'-shadow' if shadow else ''}")
    return Limit(
        **{
            "rule": name,
            "measure": measure,
            "kind": kind,
            "limit": figure,
            "window_us": window_us,
            "key": f"gw:{{{TAG}}}:{name}",
            "shadow": shadow,
            **changes,
        }
    )


def reservation(call_id: str, *asked: tuple[Limit, int], account: Account = ACCOUNT) -> Reservation:
    return Reservation(call_id, account, tuple(one for one, _ in asked), tuple(cost for _, cost in asked))


def shown(permit: Permit) -> dict[str, str]:
    """Return the headers in which a permit shows its limits."""
    lines = permit.fields.split("\r\n")
    assert lines.pop() == "", "the last line has an end too"
    return dict([line.split(": ") for line in lines])


@dataclass
class Remembering:
    """An observer that remembers what it was told."""

    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    unknown_plans: int = 0

    def limit_decided(self, rule: str, decision: str) -> None:
        self.decisions[rule, decision] += 1

    def limits_admitted(self, rules: tuple[str, ...]) -> None:
        for rule in rules:
            self.limit_decided(rule, "admitted")

    def plan_unknown(self) -> None:
        self.unknown_plans += 1

    def store_answered(self, operation: str, seconds: float) -> None:
        assert seconds >= 0
        self.answered[operation] += 1

    def store_failed(self, operation: str) -> None:
        self.failed[operation] += 1

    def settlement_dropped(self) -> None:
        self.dropped += 1


class SetClock:
    """A clock that stands until it is set."""

    def __init__(self, us: int = NOON_US) -> None:
        self.us = us

    def now(self) -> float:
        return self.us / SECOND

    def monotonic(self) -> float:
        return self.us / SECOND


@dataclass
class TimedStore:
    """A store whose time the test sets. `delivered` waits until settlements have taken effect."""

    store: Store
    set_us: Callable[[int], None]
    delivered: Callable[[], Awaitable[None]]
    now_us: int = NOON_US

    async def at(self, us: int) -> None:
        await self.delivered()
        self.now_us = us
        self.set_us(us)

    async def after(self, seconds: float) -> None:
        await self.at(self.now_us + round(seconds * SECOND))

    async def admits(self, call_id: str, *asked: tuple[Limit, int]) -> bool:
        return (await self.store.reserve(reservation(call_id, *asked))).admitted

    async def booked(self, tenant: str | None = "acme") -> dict[tuple[str, str, str, str, str], int]:
        """Return what the ledger holds of about a year, by all that a figure belongs to."""
        await self.delivered()
        today = datetime.fromtimestamp(self.now_us / SECOND, UTC).date()
        found: dict[tuple[str, str, str, str, str], int] = {}
        async for one in self.store.ledger(tenant, today - timedelta(days=390), today + timedelta(days=40)):
            place = (str(one.day), one.tenant, one.key, one.model, one.counter)
            assert place not in found
            if one.key != PROBE.key:
                found[place] = one.figure
        return found

    async def used(self, *limits: Limit) -> list[int]:
        """Return what is used of each of `limits`, without changing anything: a call that fits nothing is refused."""
        probe = [(one, 2**60) for one in limits]
        never = (limit("day", 0), 1)
        await self.delivered()
        return [
            used for used, _ in (await self.store.reserve(reservation("probe", *probe, never, account=PROBE))).levels
        ][:-1]


async def until_asked(ask: Callable[[], Awaitable[None]]) -> None:
    """Wait until the store is there: sentinels and nodes have a second to answer, which on a busy machine may pass."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(StoreUnavailable):
                await ask()
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def timed_memory() -> AsyncIterator[TimedStore]:
    clock = SetClock()

    def set_us(us: int) -> None:
        clock.us = us

    async def at_once() -> None:
        """A settlement in memory has taken effect when it returns."""

    yield TimedStore(MemoryStore(clock, lease_s=LEASE_S, ledger=MemoryLedger(retention_s=RETENTION_S)), set_us, at_once)


@asynccontextmanager
async def timed_cluster(cluster: StoreCluster) -> AsyncIterator[TimedStore]:
    """The slots of `ACCOUNT` and of everybody's limits have a key each that holds the time; elsewhere it stands."""
    steps = RedisStore(
        cluster.url,
        SystemClock(),
        timeout_s=2,
        lease_s=LEASE_S,
        retention_s=RETENTION_S,
        observer=Remembering(),
        lua_clock=LUA_CLOCK_IN_CLUSTER,
    )
    store = InTwoSteps(steps)
    with cluster.client() as client:

        def set_us(us: int) -> None:
            for tag in (TAG, EVERYBODY):
                client.set(f"{{{tag}}}test:now", us)

        async def delivered() -> None:
            await store.renew([reservation("nobody", (limit("lease", 1, key=f"gw:{{{EVERYBODY}}}:any"), 1))])

        set_us(NOON_US)
        store.start()
        try:
            await until_asked(delivered)  # it knows the nodes: settlements go ahead of what is asked from now on
            yield TimedStore(store, set_us, delivered)
        finally:
            await store.close()


@asynccontextmanager
async def timed_redis(server: StoreServer, url: str | None = None) -> AsyncIterator[TimedStore]:
    """A store in `server`, under another URL than its own where there is one."""
    store = RedisStore(
        url or server.url,
        SystemClock(),
        timeout_s=2,
        lease_s=LEASE_S,
        retention_s=RETENTION_S,
        observer=Remembering(),
        lua_clock=LUA_CLOCK,
    )
    with server.client() as client:

        def set_us(us: int) -> None:
            client.set("test:now", us)

        async def in_order() -> None:
            """Whatever is asked goes after the settlements that wait."""
            await store.renew([reservation("nobody")])

        set_us(NOON_US)
        store.start()
        try:
            await until_asked(in_order)
            yield TimedStore(store, set_us, in_order)
        finally:
            await store.close()
