"""The shared store on a real server: keys, their lives and slots, scripts, processes, URLs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from redis.crc import key_slot

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.limit import Limit
from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.store import RedisStore
from gateway.admission.reservation import Reservation
from gateway.admission.rules import Rulebook
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.errors import RateLimited
from gateway.identity.principal import Principal
from tests.deadlines import DEADLINE_S
from tests.limiting import NOON_US, RETENTION_S, SECOND, Remembering, SetClock, limit, reservation
from tests.ports import free_port
from tests.store_proxy import proxy_before
from tests.store_server import StoreServer, running_server, shared_store_server, store_server  # noqa: F401 fixtures

EVERY_KIND = (
    limit("bucket", 10),
    limit("day", 10),
    limit("month", 10),
    limit("lease", 3),
    limit("bucket", 2, window_s=3600, shadow=True),
)


@asynccontextmanager
async def connected(url: str, observer: Remembering | None = None, *, lease_s: float = 30) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        url, SystemClock(), timeout_s=5, lease_s=lease_s, retention_s=RETENTION_S, observer=observer or Remembering()
    )
    store.start()
    try:
        yield store
    finally:  # uvloop waits for ever for a connection that a failed test left open
        await store.close()


@pytest.fixture
async def store(store_server: StoreServer) -> AsyncIterator[RedisStore]:  # noqa: F811
    async with connected(store_server.url) as store:
        yield store


async def levels(store: RedisStore, *limits: Limit) -> list[int]:
    probe = reservation("probe", *[(one, 2**60) for one in limits], (limit("day", 0), 1))
    return [used for used, _ in (await store.reserve(probe)).levels][:-1]


async def test_operators_are_told_of_each_kind_what_calls_are_told(
    store: RedisStore,
    store_server: StoreServer,  # noqa: F811
) -> None:
    counted = [limit("bucket", 10, window_s=366 * 86_400), limit("day", 10), limit("month", 10), limit("lease", 3)]
    await store.reserve(reservation("call", *zip(counted, (2, 3, 4, 1), strict=True)))
    assert await RedisLevels(store_server.url).used(counted) == await levels(store, *counted) == [2, 3, 4, 1]


async def test_no_key_lives_for_ever(store: RedisStore, store_server: StoreServer) -> None:  # noqa: F811
    calls = [reservation(f"call-{i}", *[(one, 1) for one in EVERY_KIND]) for i in range(12)]
    with store_server.client() as client:
        for i, call in enumerate(calls):
            await store.reserve(call)
            if i % 2:
                store.settle(call.settlement(Usage(i, i), uncertain=i % 4 == 1))
            await store.renew(calls[:i])
            keys = list(client.scan_iter())
            assert len(keys) >= len(EVERY_KIND)
            assert [key for key in keys if client.pttl(key) == -1] == []


async def test_a_connection_cut_behind_the_first_call_of_a_window_leaves_no_key_for_ever(
    store_server: StoreServer,  # noqa: F811
) -> None:
    async with proxy_before(store_server.port) as proxy, connected(proxy.url) as store:
        await store.reserve(reservation("before", (limit("day", 7), 1)))
        proxy.lose("hang up")
        assert (await store.reserve(reservation("first", *[(one, 1) for one in EVERY_KIND]))).admitted
        assert await levels(store, *EVERY_KIND) == [1] * len(EVERY_KIND)
    with store_server.client() as client:
        assert [key for key in client.scan_iter() if client.pttl(key) == -1] == []


async def test_under_a_steady_load_over_the_ends_of_windows_no_key_lives_for_ever_and_the_rate_holds(
    store: RedisStore,
    store_server: StoreServer,  # noqa: F811
) -> None:
    """A key expires as soon as its window is full again, which is where a load like this asks for it."""
    clock, window_s, figure = SystemClock(), 0.05, 5
    short, admitted, asked = limit("bucket", figure, window_s=window_s), 0, 0
    with store_server.client() as client:
        began_s = clock.monotonic()
        for _ in range(20):
            # A burst of all that a window has, then a pause in which its key expires, or just not yet.
            for _ in range(figure + 1):
                asked += 1
                admitted += (await store.reserve(reservation(f"call-{asked}", (short, 1)))).admitted
                assert [key for key in client.scan_iter() if client.pttl(key) == -1] == []
            await asyncio.sleep(window_s * (0.9 + 0.02 * (asked % 11)))
    windows = (clock.monotonic() - began_s) / window_s
    assert 20 * (figure - 1) < admitted <= figure * (1 + windows)  # nine tenths of a window refill four at least


async def test_keys_are_gone_when_nothing_is_used_any_more(store: RedisStore, store_server: StoreServer) -> None:  # noqa: F811
    short = (limit("bucket", 10, window_s=0.2), 5)
    await store.reserve(reservation("short", short))
    given_back = reservation("given back", (limit("day", 10), 5), (limit("lease", 2), 1))
    await store.reserve(given_back)
    store.settle(given_back.settlement(None))
    with store_server.client() as client:
        async with asyncio.timeout(DEADLINE_S):
            while len(list(client.scan_iter())) > 1:
                await asyncio.sleep(0.01)
        assert [key.decode() for key in client.scan_iter()] == [reservation("short").record]


@pytest.mark.parametrize("kind", ["bucket", "day", "month", "lease"])
async def test_a_key_without_an_expiry_is_replaced_and_locks_nobody_out(
    store: RedisStore,
    store_server: StoreServer,  # noqa: F811
    kind: str,
) -> None:
    one = next(one for one in EVERY_KIND if one.kind == kind)
    with store_server.client() as client:
        for i in range(one.limit):
            assert (await store.reserve(reservation(f"call-{i}", (one, 1)))).admitted
        assert not (await store.reserve(reservation("over", (one, 1)))).admitted
        client.persist(one.key)
        assert (await store.reserve(reservation("after", (one, 1)))).admitted
        assert client.pttl(one.key) > 0
    assert await levels(store, one) == [1]


@pytest.mark.parametrize("kind", ["bucket", "day", "month", "lease"])
async def test_what_is_not_ours_under_our_keys_is_taken_away(
    store: RedisStore,
    store_server: StoreServer,  # noqa: F811
    kind: str,
) -> None:
    one = next(one for one in EVERY_KIND if one.kind == kind)
    with store_server.client() as client:
        for i, spoil in enumerate([("SET", one.key, "999999"), ("HSET", one.key, "a", "b")]):
            client.delete(one.key)
            client.execute_command(*spoil)
            assert (await store.reserve(reservation(f"call-{i}", (one, 1)))).admitted
            assert await levels(store, one) == [1]


async def test_scripts_that_the_server_forgot_are_loaded_again(store: RedisStore, store_server: StoreServer) -> None:  # noqa: F811
    calls = [reservation(f"call-{i}", (limit("day", 100), 2), (limit("lease", 50), 1)) for i in range(10)]
    with store_server.client() as client:
        for call in calls[:5]:
            await store.reserve(call)
        client.script_flush()
        for call in calls[:5]:
            store.settle(call.settlement(Usage(0, 1)))
        answers = await asyncio.gather(*[store.reserve(call) for call in calls[5:]])
    assert all(answer.admitted for answer in answers)
    assert await levels(store, limit("day", 100), limit("lease", 50)) == [15, 5]


async def test_calls_of_one_moment_share_a_pipeline(store_server: StoreServer) -> None:  # noqa: F811
    observer = Remembering()
    async with connected(store_server.url, observer) as store:
        calls = [reservation(f"call-{i}", (limit("day", 100), 1)) for i in range(100)]
        await asyncio.gather(*[store.reserve(call) for call in calls])
        assert observer.answered == {"reserve": 1}
        for call in calls:
            store.settle(call.settlement(Usage(1, 1)))
        await asyncio.gather(*[store.reserve(call) for call in calls])
        assert observer.answered == {"reserve": 2, "settle": 1}


async def test_a_freed_slot_is_free_for_the_next_call_at_once(store: RedisStore) -> None:
    one = limit("lease", 1)
    for i in range(20):
        call = reservation(f"call-{i}", (one, 1))
        assert (await store.reserve(call)).admitted
        store.settle(call.settlement(None))


async def test_settlements_are_delivered_without_further_calls(store: RedisStore, store_server: StoreServer) -> None:  # noqa: F811
    call = reservation("call", (limit("lease", 1), 1))
    await store.reserve(call)
    store.settle(call.settlement(None))
    with store_server.client() as client:
        async with asyncio.timeout(DEADLINE_S):
            while list(client.scan_iter()) or store.pending:
                await asyncio.sleep(0.005)


LIMITS = config.Limits(
    plans={
        "standard": (
            config.Rule(name="requests", per=("key",), requests=10, window="1h"),
            config.Rule(name="tokens", per=("key", "model"), tokens=1000, window="1h"),
            config.Rule(name="at-once", per=("tenant",), concurrent=1000),
            config.Rule(name="everybody", tokens=10**9, window="month"),
        )
    }
)
CALL = Call(
    "chat", "m", b"", stream=False, include_usage=False, continuous_usage=False, input_tokens=10, output_tokens=5
)


async def admit(admission: Admission, call_id: str, *, tenant: str = "acme") -> bool:
    principal = Principal(tenant, "key-1")
    try:
        permit = await admission.admit(principal, CALL, model="m", pool="p", default_output_tokens=1, call_id=call_id)
    except RateLimited:
        return False
    permit.settle(Usage(10, 5))
    return True


async def test_three_gateways_with_skewed_clocks_count_as_one(store_server: StoreServer) -> None:  # noqa: F811
    async with AsyncExitStack() as stack:
        gateways = []
        for skew_s in (0, 20, -3600):
            clock = SetClock(NOON_US + skew_s * SECOND)
            store = RedisStore(
                store_server.url, clock, timeout_s=5, lease_s=30, retention_s=RETENTION_S, observer=Remembering()
            )
            gateways.append(Admission(LIMITS, store, clock, observer=Remembering()))
            gateways[-1].start()
            stack.push_async_callback(gateways[-1].close)
        admitted = await asyncio.gather(*[admit(gateways[i % 3], f"call-{i}") for i in range(60)])
    assert admitted.count(True) == 10


ODD = ["acme", "{}", "}{", "a{b}c", "nul\0nul", "line\r\nline", "\ud800", "ü" * 300, " ", "gw:{all}"]


def test_all_keys_of_a_tenant_share_a_slot_whatever_its_name() -> None:
    tags = set()
    rulebook = Rulebook(LIMITS)
    for tenant in ODD:
        applying = rulebook.applying(Principal(tenant, tenant), model="m", pool="p")
        keys = [one.key for one in applying.limits if one.rule != "everybody"]
        record = Reservation("call", applying.account, (), ()).record
        assert len({key_slot(key.encode()) for key in [*keys, record]}) == 1
        assert all(key.isascii() and key.isprintable() and " " not in key for key in keys)
        tags.add(applying.account.tag)
    assert len(tags) == len(ODD)


async def test_a_cluster_node_takes_calls_of_every_tenant_without_crossing_slots() -> None:
    own = config.Limits(plans={"standard": tuple(rule for rule in LIMITS.plans["standard"] if rule.per)})
    # By default the nodes' own port is 10000 above, which may be none.
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with running_server(*options) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        async with asyncio.timeout(DEADLINE_S):
            while "cluster_state:ok" not in str(client.execute_command("CLUSTER", "INFO")):
                await asyncio.sleep(0.01)
        observer = Remembering()
        store = RedisStore(
            server.url, SystemClock(), timeout_s=5, lease_s=30, retention_s=RETENTION_S, observer=observer
        )
        admission = Admission(own, store, SystemClock(), observer=observer)
        admission.start()
        tenants = [*ODD, *[f"tenant-{i}" for i in range(200)]]
        assert all([await admit(admission, f"call-{i}", tenant=tenant) for i, tenant in enumerate(tenants)])
        await admission.close()
        assert observer.failed == {}
        assert observer.dropped == 0


async def test_a_gateway_with_shorter_leases_does_not_shorten_the_others(
    store_server: StoreServer,  # noqa: F811
) -> None:
    slots = limit("lease", 5)
    for call, lease_s in [("long", 60), ("short", 1)]:
        async with connected(store_server.url, lease_s=lease_s) as store:
            await store.reserve(reservation(call, (slots, 1)))
    with store_server.client() as client:
        assert client.pttl(slots.key) > 50_000
