"""What every store books of a call, in memory and in a real server alike; the time is the test's."""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from itertools import count

import pytest
from redis.crc import key_slot

from gateway.admission.digest import digest
from gateway.admission.ledger.account import Account
from gateway.admission.ledger.memory import MemoryLedger
from gateway.admission.memory import MemoryStore
from gateway.admission.redis.ledger import RedisLedger
from gateway.admission.store import StoreUnavailable
from gateway.calls.usage import Usage
from tests.limiting import (
    ACCOUNT,
    DAY,
    LEASE_S,
    NOON_US,
    RETENTION_S,
    SECOND,
    SetClock,
    TimedStore,
    limit,
    reservation,
    timed_redis,
)
from tests.ports import free_port
from tests.store_kinds import KINDS, timed_kind
from tests.store_server import StoreServer

DAILY = limit("day", 10)
TODAY = "2026-11-29"


@pytest.fixture(params=KINDS)
async def timed(request: pytest.FixtureRequest) -> AsyncIterator[TimedStore]:
    async with timed_kind(request.param, request) as store:
        yield store


def line(*figures: tuple[str, int], day: str = TODAY, account: Account = ACCOUNT) -> dict[tuple[str, ...], int]:
    return {(day, account.tenant, account.key, account.model, counter): figure for counter, figure in figures}


async def test_a_call_is_booked_with_all_that_is_not_zero(timed: TimedStore) -> None:
    asked = reservation("call", (DAILY, 1))
    await timed.store.reserve(asked)
    timed.store.settle(asked.settlement(Usage(20, 7, 5, 3)))
    told = line(
        ("calls", 1), ("prompt_tokens", 20), ("completion_tokens", 7), ("cached_tokens", 5), ("reasoning_tokens", 3)
    )
    assert await timed.booked() == told


async def test_a_call_without_limits_is_booked(timed: TimedStore) -> None:
    asked = reservation("call")
    await timed.store.reserve(asked)
    timed.store.settle(asked.settlement(Usage(2, 3)))
    assert await timed.booked() == line(("calls", 1), ("prompt_tokens", 2), ("completion_tokens", 3))


async def test_calls_add_up_and_estimates_stand_apart(timed: TimedStore) -> None:
    for i, usage in enumerate([Usage(20, 7), Usage(1, 0, source="estimated"), Usage(0, 0), Usage(9, 4)]):
        asked = reservation(f"call-{i}")
        await timed.store.reserve(asked)
        timed.store.settle(asked.settlement(usage))
    told = line(("calls", 4), ("prompt_tokens", 30), ("completion_tokens", 11), ("estimated_tokens", 1))
    assert await timed.booked() == told


@pytest.mark.parametrize("uncertain", [False, True])
async def test_a_settlement_that_comes_again_is_booked_once(timed: TimedStore, uncertain: bool) -> None:
    asked = reservation("call", (DAILY, 1))
    await timed.store.reserve(asked)
    for _ in range(3):
        timed.store.settle(asked.settlement(Usage(2, 3), uncertain=uncertain))
    assert await timed.booked() == line(("calls", 1), ("prompt_tokens", 2), ("completion_tokens", 3))


async def test_a_call_that_no_engine_took_is_not_booked(timed: TimedStore) -> None:
    given_back, unknown, late = (reservation(name, (DAILY, 1)) for name in ("given back", "unknown", "late"))
    await timed.store.reserve(given_back)
    timed.store.settle(given_back.settlement(None))
    timed.store.settle(unknown.settlement(Usage(1, 1)))
    timed.store.settle(late.settlement(None, uncertain=True))
    await timed.store.reserve(late)
    assert await timed.booked() == {}


async def test_a_call_that_the_store_never_saw_is_booked_once_on_the_day_on_which_it_ended(timed: TimedStore) -> None:
    await timed.after(86_400)
    unseen = reservation("unseen", (DAILY, 1))
    for _ in range(3):
        settlement = unseen.settlement(Usage(2, 3), uncertain=True)
        settlement.ended_us = NOON_US
        timed.store.settle(settlement)
    await timed.store.reserve(unseen)
    assert await timed.booked() == line(("calls", 1), ("prompt_tokens", 2), ("completion_tokens", 3))


async def test_a_refusal_is_booked_once_however_often_it_is_asked_for(timed: TimedStore) -> None:
    for _ in range(3):
        assert not await timed.admits("call", (DAILY, 11))
    assert not await timed.admits("another", (DAILY, 11))
    assert await timed.booked() == line(("refused", 2))


async def test_a_refused_call_settles_nothing_and_is_renewed_never(timed: TimedStore) -> None:
    asked = reservation("call", (DAILY, 11), (limit("lease", 1), 1))
    await timed.store.reserve(asked)
    await timed.store.renew([asked])
    timed.store.settle(asked.settlement(Usage(1, 1)))
    assert await timed.booked() == line(("refused", 1))
    assert await timed.used(DAILY, limit("lease", 1)) == [0, 0]


async def test_a_call_that_is_refused_and_then_fits_is_admitted(timed: TimedStore) -> None:
    full = reservation("full", (DAILY, 10))
    await timed.store.reserve(full)
    assert not await timed.admits("call", (DAILY, 1))
    timed.store.settle(full.settlement(None))
    await timed.delivered()
    assert await timed.admits("call", (DAILY, 1))
    timed.store.settle(reservation("call", (DAILY, 1)).settlement(Usage(1, 0)))
    assert await timed.booked() == line(("refused", 1), ("calls", 1), ("prompt_tokens", 1))


async def test_what_a_shadow_would_have_refused_is_not_refused(timed: TimedStore) -> None:
    assert await timed.admits("call", (limit("day", 1, shadow=True), 2))
    assert await timed.booked() == {}


@pytest.mark.parametrize("year", [2026, 2027, 2028, 2096])
async def test_a_call_is_booked_on_the_utc_day_on_which_it_was_settled(timed: TimedStore, year: int) -> None:
    calls = count()
    expected: dict[tuple[str, ...], int] = {}
    for month in range(1, 13):
        first = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        asked = [reservation(f"call-{next(calls)}") for _ in range(2)]
        await timed.at(int(first.timestamp()) * SECOND - 1)
        for one in asked:
            await timed.store.reserve(one)
        timed.store.settle(asked[0].settlement(Usage(1, 0)))
        await timed.at(int(first.timestamp()) * SECOND)
        timed.store.settle(asked[1].settlement(Usage(0, 1)))
        last = first.date() - timedelta(days=1)
        expected |= line(("calls", 1), ("prompt_tokens", 1), day=str(last))
        expected |= line(("calls", 1), ("completion_tokens", 1), day=str(first.date()))
    assert await timed.booked() == expected


ODD = [
    "a b",
    "a",
    "b c",
    "c",
    "",
    "%20",
    "{}",
    "gw:{all}",
    "nul\0nul",
    "line\r\nline",
    "\ud800",
    "ünï/cödé🙂",
    "+",
    "k" * 10_000,
    "tenant",
]


async def test_lines_stay_apart_and_names_as_they_are_whatever_they_hold(timed: TimedStore) -> None:
    accounts = [Account(f"{name} & co", key, name, digest(f"{name} & co")) for name in ODD for key in ODD]
    expected: dict[tuple[str, ...], int] = {}
    for i, account in enumerate(accounts):
        asked = reservation(f"call-{i}", account=account)
        await timed.store.reserve(asked)
        timed.store.settle(asked.settlement(Usage(i + 1, 0)))
        expected |= line(("calls", 1), ("prompt_tokens", i + 1), account=account)
    assert await timed.booked(None) == expected
    for name in ODD:
        tenant = f"{name} & co"
        of_tenant = {place: figure for place, figure in expected.items() if place[1] == tenant}
        assert await timed.booked(tenant) == of_tenant


async def test_only_the_days_between_are_read_both_included(timed: TimedStore) -> None:
    for i in range(5):
        asked = reservation(f"call-{i}")
        await timed.store.reserve(asked)
        timed.store.settle(asked.settlement(Usage(1, 0)))
        await timed.at(timed.now_us + DAY)
    for tenant in ("acme", None):
        read = timed.store.ledger(tenant, date(2026, 11, 30), date(2026, 12, 2))
        assert sorted({str(one.day) async for one in read}) == ["2026-11-30", "2026-12-01", "2026-12-02"]


async def test_calls_are_booked_while_the_ledger_is_read(timed: TimedStore) -> None:
    async def book(i: int) -> None:
        asked = reservation(f"call-{i}", account=Account("acme", f"key-{i}", "m", ACCOUNT.tag))
        await timed.store.reserve(asked)
        timed.store.settle(asked.settlement(Usage(1, 0)))

    for i in range(700):
        await book(i)
    await timed.delivered()
    read: set[str] = set()
    async for one in timed.store.ledger("acme", date(2026, 11, 29), date(2026, 11, 29)):
        if not read:
            await book(700)
        read.add(one.key)
    assert {f"key-{i}" for i in range(700)} <= read


async def test_memory_forgets_a_day_when_its_retention_is_over() -> None:
    clock = SetClock()
    ledger = MemoryLedger(retention_s=86_400)
    store = MemoryStore(clock, lease_s=LEASE_S, ledger=ledger)
    for i in range(4):
        asked = reservation(f"call-{i}")
        await store.reserve(asked)
        store.settle(asked.settlement(Usage(1, 0)))
        assert len(ledger._days) <= 3
        clock.us += DAY - (SECOND if i == 3 else 0)
    read = store.ledger("acme", date(2026, 1, 1), date(2026, 12, 31))
    assert {str(one.day) async for one in read} == {"2026-12-02"}
    clock.us -= DAY // 2  # the last moment of the day's end and a day
    read = store.ledger("acme", date(2026, 1, 1), date(2026, 12, 31))
    assert {str(one.day) async for one in read} == {"2026-12-01", "2026-12-02"}


async def test_the_server_forgets_a_day_when_its_retention_is_over(store_server: StoreServer) -> None:
    async with timed_redis(store_server) as timed:
        asked = reservation("call")
        await timed.store.reserve(asked)
        timed.store.settle(asked.settlement(Usage(1, 0)))
        await timed.delivered()
        with store_server.client() as client:
            end = int(client.hget("test:ends", f"gw:{{{ACCOUNT.tag}}}:ledger:20261129"))
    assert end == NOON_US + DAY // 2 + RETENTION_S * SECOND


async def test_a_ledger_lives_in_its_tenants_slot_under_plain_names(store_server: StoreServer) -> None:
    accounts = [Account(name, name, name, digest(name)) for name in ODD]
    async with timed_redis(store_server) as timed:
        for i, account in enumerate(accounts):
            asked = reservation(f"call-{i}", account=account)
            await timed.store.reserve(asked)
            timed.store.settle(asked.settlement(Usage(1, 1)))
        await timed.delivered()
    with store_server.client() as client:
        assert set(client.scan_iter("gw:*")) == {
            f"gw:{{{account.tag}}}:ledger:20261129".encode() for account in accounts
        }
        for account in accounts:
            key = f"gw:{{{account.tag}}}:ledger:20261129"
            assert key_slot(key.encode()) == key_slot(reservation("call", account=account).record.encode())
            fields = client.hgetall(key)
            assert len(fields) == 4
            assert all(0x20 <= byte < 0x7F for field in fields for byte in field)


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_a_day_of_many_keys_is_read_in_pages_and_whole(
    store_server: StoreServer,
    tenant: str | None,
) -> None:
    async with timed_redis(store_server) as timed:
        for i in range(3000):
            account = Account("acme", f"key-{i}", "m", ACCOUNT.tag)
            asked = reservation(f"call-{i}", account=account)
            await timed.store.reserve(asked)
            timed.store.settle(asked.settlement(Usage(i, 0)))
        booked = await timed.booked(tenant)
    assert {place[2]: figure for place, figure in booked.items() if place[4] == "prompt_tokens"} == {
        f"key-{i}": i for i in range(1, 3000)
    }
    assert sum(figure for place, figure in booked.items() if place[4] == "calls") == 3000


async def test_what_is_not_ours_under_a_ledgers_key_is_taken_away(store_server: StoreServer) -> None:
    async with timed_redis(store_server) as timed:
        with store_server.client() as client:
            client.set(f"gw:{{{ACCOUNT.tag}}}:ledger:20261129", "something")
        asked = reservation("call")
        await timed.store.reserve(asked)
        timed.store.settle(asked.settlement(Usage(1, 2)))
        assert await timed.booked() == line(("calls", 1), ("prompt_tokens", 1), ("completion_tokens", 2))


async def test_a_server_that_is_away_cannot_be_read() -> None:
    today = datetime.fromtimestamp(NOON_US / SECOND, UTC).date()
    postings = RedisLedger(f"redis://127.0.0.1:{free_port()}/0").postings("acme", today, today)
    with pytest.raises(StoreUnavailable) as raised:
        await anext(aiter(postings))
    assert "refused" in str(raised.value.__cause__) or "Connect" in str(raised.value.__cause__)


async def test_of_a_day_that_was_overwritten_by_hand_nothing_is_told_and_all_of_the_others(
    store_server: StoreServer,
) -> None:
    key = f"gw:{{{ACCOUNT.tag}}}:ledger:20261129"
    with store_server.client() as client:
        client.set(key, "not ours")
        client.hset(f"{key[:-2]}28", mapping={"tenant": "acme", "calls key-1 m": 3})
    ledger = RedisLedger(store_server.url)
    for tenant in ("acme", None):
        told = [one async for one in ledger.postings(tenant, date(2026, 11, 28), date(2026, 11, 29))]
        assert [(one.counter, one.figure) for one in told] == [("calls", 3)]
