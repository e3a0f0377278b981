"""A Redis Cluster: every call finds its master, through failovers and resharding, and is booked once."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from operator import lt
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway import config
from gateway.admission.digest import digest
from gateway.admission.ledger.account import Account
from gateway.admission.redis.cluster import Cluster
from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.settings import RedisSettings
from gateway.admission.redis.slots import slot_of
from gateway.admission.redis.store import RedisStore
from gateway.admission.redis.two_steps import InTwoSteps
from gateway.admission.reservation import Reservation
from gateway.admission.settings.settings import Change
from gateway.admission.store import StoreUnavailable
from gateway.calls.usage import Usage
from tests.deadlines import DEADLINE_S, STORE_TIMEOUT_S
from tests.limiting import TAG, Remembering, limit, reservation
from tests.load import CLOCK, RULES, Gateway, gateway_before, until
from tests.store_cluster import StoreCluster, ask
from tests.store_server import StoreServer

RIGHTS = (
    "EVALSHA SCRIPT|LOAD TIME GET SET DEL PTTL PEXPIRE SETRANGE HINCRBY HSET ZADD ZREM ZCARD ZREMRANGEBYSCORE "
    "SCAN HSCAN HGET HGETALL HDEL EXISTS ZCOUNT XADD"
)
DAILY = limit("day", 10**9)
EVERYBODYS = limit("day", 10**9, key="gw:{all}:shared")
ODD = ["acme", "{}", "}{", "a{b}c", "nul\0nul", "line\r\nline", "\ud800", "ü" * 300, " ", "gw:{all}", "all", ""]
WITH_EVERYBODYS = (
    *RULES,
    config.Rule(name="everybody", tokens=10**9, window="month"),
    config.Rule(name="slots", concurrent=10**6),
)
TENANTS = [f"tenant-{number}" for number in (0, 1, 6, 7, 8, 2)]  # two on each master


@asynccontextmanager
async def connected(url: str, observer: Remembering | None = None, **options: Any) -> AsyncIterator[InTwoSteps]:
    given = {"timeout_s": 5, "lease_s": 30, "retention_s": 86_400, "observer": observer or Remembering(), **options}
    store = InTwoSteps(RedisStore(url, CLOCK, **given))
    store.start()
    try:
        yield store
    finally:
        await store.close()


def lanes(store: Any) -> Cluster:
    cluster = store._steps._lane
    assert isinstance(cluster, Cluster)
    return cluster


def counts(cluster: StoreCluster, pattern: str) -> int:
    """Return what is used of the limits whose keys are such, on all masters."""
    used = 0
    for node in cluster.masters:
        with node.client() as client:
            used += sum(int(str(client.get(key), "ascii").split()[0]) for key in client.scan_iter(pattern))
    return used


def slots_held(cluster: StoreCluster) -> int:
    held = 0
    for node in cluster.masters:
        with node.client() as client:
            held += sum(
                client.zcard(key) for pattern in ("gw:*:at-once:*", "gw:*:slots:*") for key in client.scan_iter(pattern)
            )
    return held


async def exact(gateway: Gateway, cluster: StoreCluster) -> None:
    """Check that ledger, tenants' quotas and everybody's are what was used."""
    await gateway.settled()
    tokens, calls = await gateway.booked()
    assert tokens == gateway.used
    assert calls.total() == gateway.ended["counted"] + gateway.ended["uncounted"]
    assert counts(cluster, "gw:*:tokens:*") == gateway.used.total()
    assert counts(cluster, "gw:*:everybody:*") == gateway.used.total()
    assert counts(cluster, "gw:*:calls:*") == calls.total()
    assert slots_held(cluster) == 0
    assert gateway.observer.dropped == 0


async def test_calls_of_one_moment_share_a_pipeline_to_each_master(store_cluster: StoreCluster) -> None:
    observer = Remembering()
    async with connected(store_cluster.url, observer) as store:
        async with asyncio.timeout(DEADLINE_S):
            while not lanes(store).whole:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        calls = [reservation(f"call-{i}", (DAILY, 1)) for i in range(100)]
        await asyncio.gather(*[store.reserve(call) for call in calls])
        assert observer.answered["reserve"] == 1
        assert observer.failed == {}


async def test_every_tenant_and_key_is_counted_without_crossing_slots(store_cluster: StoreCluster) -> None:
    events = config.Events(stream="tenant")
    async with gateway_before(store_cluster.url, "deny", rules=WITH_EVERYBODYS, timeout_s=5, events=events) as gateway:
        tenants = [*ODD, *[f"tenant-{number}" for number in range(200)]]
        await asyncio.gather(*[gateway.call(tenant) for tenant in tenants for _ in range(2)])
        assert gateway.ended == {"counted": 2 * len(tenants)}
        await exact(gateway, store_cluster)
        assert gateway.observer.failed.keys() <= {"connect"}  # a busy machine may not be told in time who has what
        assert all(key.startswith("gw:{") and key.isascii() for key in store_cluster.keys("*"))
        assert len({store_cluster.owner_of(f"{{{digest(tenant)}}}") for tenant in tenants}) == 3
        with store_cluster.client() as client:
            assert [client.xlen(key) for key in store_cluster.keys("gw:*:events")] == [2] * len(tenants)
            assert all(client.pttl(key) > 0 for key in store_cluster.keys("*"))


@pytest.mark.parametrize("refuser", ["tenant", "everybody"])
async def test_a_call_that_either_refuses_takes_nothing_of_both_and_is_booked_as_refused_once(
    store_cluster: StoreCluster,
    refuser: Literal["tenant", "everybody"],
) -> None:
    few, many = 3, 1000
    rules = (
        config.Rule(name="own", per=("key",), requests=few if refuser == "tenant" else many, window="month"),
        config.Rule(name="everybody", requests=few if refuser == "everybody" else many, window="month"),
        config.Rule(name="slots", concurrent=10**6),
    )
    async with gateway_before(store_cluster.url, "deny", rules=rules, timeout_s=5) as gateway:
        await asyncio.gather(*[gateway.call("acme") for _ in range(50)])
        assert gateway.ended == {"counted": few, "refused": 50 - few}
        await gateway.settled()
        assert counts(store_cluster, "gw:*:own:*") == counts(store_cluster, "gw:*:everybody:*") == few
        assert slots_held(store_cluster) == 0
        with store_cluster.client() as client:
            (day,) = store_cluster.keys("gw:*:ledger:*")
            assert {field.split()[0]: figure for field, figure in client.hgetall(day).items()}[b"refused"] == b"47"


async def test_a_caller_that_leaves_between_the_steps_reserves_nothing(store_cluster: StoreCluster) -> None:
    async with connected(store_cluster.url) as store:
        for turns in range(40):
            call = reservation(f"leaves-{turns}", (DAILY, 5), (EVERYBODYS, 5))
            reserving = asyncio.ensure_future(store.reserve(call))
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.sleep(turns / 20_000)
            reserving.cancel()
            await asyncio.wait({reserving})
            if not reserving.cancelled():
                store.settle(call.settlement(None))
        await store.renew([reservation("nobody", (DAILY, 1), (EVERYBODYS, 1))])
        # Both masters have answered all that was asked; what was taken for nobody is given back from then on.
        await until(lambda: not store.pending)
        assert counts(store_cluster, "gw:*:day*") == counts(store_cluster, "gw:{all}:shared") == 0


async def test_a_settlement_of_both_parts_that_comes_again_and_again_counts_once(
    store_cluster: StoreCluster,
) -> None:
    async with connected(store_cluster.url) as store:
        seen, unseen = [reservation(name, (DAILY, 100), (EVERYBODYS, 100)) for name in ("seen", "unseen")]
        await store.reserve(seen)
        for _ in range(3):
            store.settle(seen.settlement(Usage(1, 2), charging=True))
            store.settle(unseen.settlement(Usage(10, 20), uncertain=True))
        await until(lambda: not store.pending)
        await store.reserve(unseen)  # arrives late
        assert counts(store_cluster, "gw:*:day*") == counts(store_cluster, "gw:{all}:shared") == 33


@pytest.mark.parametrize("mode", ["allow", "deny"])
async def test_masters_that_are_killed_under_load_are_replaced_and_every_call_is_booked_once(
    own_store_cluster: StoreCluster,
    tmp_path: Path,
    mode: Literal["allow", "deny"],
) -> None:
    async with gateway_before(own_store_cluster.url, mode, rules=WITH_EVERYBODYS, journal=tmp_path) as gateway:
        async with gateway.under_load(TENANTS):
            await gateway.counted(300)
            victim = own_store_cluster.owner_of("{all}")
            own_store_cluster.kill_master(victim)
            await until(lambda: not lanes(gateway.store).whole)
            await asyncio.to_thread(own_store_cluster.wait_until_taken_over, victim)
            over_s = CLOCK.monotonic()
            await until(lambda: lanes(gateway.store).whole)
            assert CLOCK.monotonic() - over_s < 2
            await gateway.counted(300)
        assert gateway.ended["away" if mode == "deny" else "uncounted"] > 0
        await exact(gateway, own_store_cluster)


async def test_a_failover_that_is_asked_for_and_slots_that_move_lose_no_call(
    own_store_cluster: StoreCluster,
) -> None:
    async with gateway_before(own_store_cluster.url, "deny", rules=WITH_EVERYBODYS) as gateway:
        async with gateway.under_load(TENANTS):
            await gateway.counted(300)
            await asyncio.to_thread(own_store_cluster.fail_over, 0)
            await gateway.counted(300)
            for tag in ("all", digest(TENANTS[0])):
                source = own_store_cluster.owner_of(f"{{{tag}}}")
                target = (source + 1) % 3
                await asyncio.to_thread(own_store_cluster.move_slot, slot_of(tag), source=source, target=target)
            await gateway.counted(300)
            own_store_cluster.masters[1].freeze()
            await asyncio.to_thread(own_store_cluster.wait_until_taken_over, 1)
            await gateway.counted(100)
            own_store_cluster.replicas[1].thaw()
            await gateway.counted(300)
        await exact(gateway, own_store_cluster)


async def test_while_a_slot_is_moved_key_by_key_its_calls_wait_or_are_away_and_none_is_booked_in_two_places(
    store_cluster: StoreCluster,
) -> None:
    slot, source = slot_of(TAG), store_cluster.owner_of(f"{{{TAG}}}")
    ends = {"source": source, "target": (source + 1) % 3}
    async with connected(store_cluster.url, timeout_s=STORE_TIMEOUT_S) as store:
        before, during = [
            [reservation(f"{when}-{i}", (DAILY, 100)) for i in range(20)] for when in ("before", "during")
        ]
        for call in [*before, *during]:
            await store.reserve(call)
        for call in before:
            store.settle(call.settlement(Usage(1, 2), charging=True))
        await until(lambda: not store.pending)
        (day,) = store_cluster.keys("gw:*:ledger:*")
        try:
            store_cluster.begin_move(slot, **ends)
            store_cluster.move_keys(day, **ends)
            for call in during:
                store.settle(call.settlement(Usage(1, 2), charging=True))
            with pytest.raises(StoreUnavailable) as away:
                await store.reserve(reservation("new", (DAILY, 100)))
            assert not away.value.sent
            assert store.pending == 20
            waiting = asyncio.ensure_future(store.reserve(reservation("waits", (DAILY, 100))))
            await asyncio.sleep(0)
            await asyncio.to_thread(store_cluster.move_slot, slot, **ends)
            assert (await waiting).admitted
            await until(lambda: not store.pending)
            assert [store_cluster.booked(day)[counter] for counter in ("calls", "prompt_tokens")] == [40, 40]
            assert counts(store_cluster, DAILY.key.replace("{", "*").replace("}", "*")) == 40 * 3 + 100
        finally:
            back = {"source": ends["target"], "target": ends["source"]}
            await asyncio.to_thread(store_cluster.move_slot, slot, **back)


async def test_writes_that_a_replica_never_got_are_made_good_after_the_failover(
    own_store_cluster: StoreCluster,
) -> None:
    # It must not give up a connection to a slow master: it could make no other.
    async with gateway_before(own_store_cluster.url, "deny", rules=WITH_EVERYBODYS, timeout_s=5) as gateway:
        async with gateway.under_load(TENANTS):
            await gateway.counted(200)
            victim = own_store_cluster.owner_of("{all}")
            master = own_store_cluster.masters[victim]
            ask(master, "CONFIG", "SET", "requirepass", "other")  # for the replica, which is to connect again
            with master.client(password="other") as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            await gateway.counted(300)
            own_store_cluster.kill_master(victim)
            await asyncio.to_thread(own_store_cluster.wait_until_taken_over, victim)
            await gateway.counted(200)
        await exact(gateway, own_store_cluster)


async def test_a_user_with_the_documented_rights_counts_and_reads(own_store_cluster: StoreCluster) -> None:
    rights = f"{RIGHTS} INFO CLUSTER|SLOTS CLUSTER|INFO COMMAND"
    for node in own_store_cluster.nodes:
        may = [f"+{word}".lower() for word in rights.split()]
        ask(node, "ACL", "SETUSER", "gate", "reset", ">s3cret", "on", "~gw:*", *may)
    url = own_store_cluster.url.replace("//", "//gate:s3cret@")
    events = config.Events(stream="tenant")
    async with gateway_before(url, "deny", rules=WITH_EVERYBODYS, timeout_s=5, events=events) as gateway:
        for tenant in TENANTS:
            await gateway.call(tenant)
        await exact(gateway, own_store_cluster)
        assert gateway.observer.failed.keys() <= {"connect"}  # a busy machine may not be told in time who has what
    assert await RedisLevels(url).used([DAILY, EVERYBODYS]) == [0, 0]
    settings = RedisSettings(url, "test")
    await settings.change([Change("name", b"value")])
    assert (await settings.read()).entries == {"name": b"value"}
    await settings.close()


async def test_what_is_no_cluster_is_away_and_the_log_says_why(
    store_server: StoreServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    for port, reason in [(store_server.port, "cluster support disabled"), (1, "Connection refused")]:
        observer = Remembering()
        async with connected(f"redis+cluster://127.0.0.1:{port}", observer, timeout_s=STORE_TIMEOUT_S) as store:
            with pytest.raises(StoreUnavailable):
                await store.reserve(reservation("call", (DAILY, 1)))
            assert not store.up
        assert reason in caplog.records[-1].message


async def test_a_tenant_whose_master_is_away_holds_up_no_other(store_cluster: StoreCluster) -> None:
    tenants = {store_cluster.owner_of(f"{{{digest(tenant)}}}"): tenant for tenant in TENANTS}
    async with gateway_before(store_cluster.url, "deny") as gateway:
        for tenant in tenants.values():
            await gateway.call(tenant)
        frozen = store_cluster.masters[0]
        frozen.freeze()
        try:
            for _ in range(50):
                await asyncio.gather(*[gateway.call(tenant) for tenant in tenants.values()])
        finally:
            frozen.thaw()
        assert gateway.ended == Counter(counted=3 + 100, away=50)
        await gateway.settled()
        assert (await gateway.booked())[0] == gateway.used
    await asyncio.to_thread(store_cluster.wait_until_whole)


async def test_leases_are_renewed_where_masters_answer_though_another_is_away(own_store_cluster: StoreCluster) -> None:
    owners = {
        own_store_cluster.owner_of(f"{{{digest(tenant)}}}"): Account(tenant, "k", "m", digest(tenant))
        for tenant in TENANTS
    }
    calls = [
        reservation(account.tag, (limit("lease", 5, key=f"gw:{{{account.tag}}}:slots"), 1), account=account)
        for _, account in sorted(owners.items())
    ]

    def until_s(call: Reservation, node: StoreServer) -> float:
        with node.client() as client:
            return float(str(client.zscore(call.limits[0].key, call.call_id)))

    async with connected(own_store_cluster.url, timeout_s=STORE_TIMEOUT_S) as store:
        for call in calls:
            assert (await store.reserve(call)).admitted
        own_store_cluster.masters[0].freeze()
        for _ in range(2):  # found to be away, and known to be
            before = [until_s(*pair) for pair in zip(calls[1:], own_store_cluster.masters[1:], strict=True)]
            with pytest.raises(StoreUnavailable):
                await store.renew(calls)
            after = [until_s(*pair) for pair in zip(calls[1:], own_store_cluster.masters[1:], strict=True)]
            assert all(map(lt, before, after))
        own_store_cluster.masters[0].thaw()


async def test_overrides_are_read_through_failovers_without_a_word_in_the_log(
    own_store_cluster: StoreCluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings = RedisSettings(own_store_cluster.url, "overrides")
    await settings.change([Change("a", b"1")])
    version = await settings.version()
    number = own_store_cluster.owner_of("{overrides}")
    for _ in range(2):
        own_store_cluster.masters[number].freeze()
        taking_over = asyncio.create_task(asyncio.to_thread(own_store_cluster.wait_until_taken_over, number))
        while not taking_over.done():
            with suppress(StoreUnavailable):
                assert await settings.version() == version
        await taking_over
        own_store_cluster.replicas[number].thaw()
        await asyncio.to_thread(own_store_cluster.wait_until_whole)
        assert await settings.version() == version
    await settings.close()
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
