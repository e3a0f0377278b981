"""What every store does, in memory and in a real server alike; the time is the test's."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count

import pytest

from gateway.admission.limit import MAX_COUNT
from gateway.calls.usage import Usage
from tests.limiting import DAY, LEASE_S, NOON_US, SECOND, TimedStore, limit, reservation
from tests.store_kinds import KINDS, timed_kind

PER_MINUTE = limit("bucket", 10)
PER_HOUR = limit("bucket", 1000, window_s=3600)
DAILY = limit("day", 10)
MONTHLY = limit("month", 10)
AT_ONCE = limit("lease", 2)


@pytest.fixture(params=KINDS)
async def timed(request: pytest.FixtureRequest) -> AsyncIterator[TimedStore]:
    async with timed_kind(request.param, request) as store:
        yield store


async def test_of_a_hundred_calls_at_once_exactly_ten_are_admitted(timed: TimedStore) -> None:
    answers = await asyncio.gather(*[timed.admits(f"call-{i}", (PER_MINUTE, 1)) for i in range(100)])
    assert answers.count(True) == 10
    assert await timed.used(PER_MINUTE) == [10]


async def test_a_refused_call_changes_no_limit(timed: TimedStore) -> None:
    assert await timed.admits("first", (PER_MINUTE, 3), (DAILY, 9), (AT_ONCE, 1))
    before = await timed.used(PER_MINUTE, DAILY, AT_ONCE)
    assert not await timed.admits("second", (PER_MINUTE, 1), (DAILY, 2), (AT_ONCE, 1))
    assert await timed.used(PER_MINUTE, DAILY, AT_ONCE) == before == [3, 9, 1]
    assert await timed.admits("third", (PER_MINUTE, 7), (DAILY, 1), (AT_ONCE, 1))


async def test_figures_are_exact_to_the_largest_and_what_is_larger_never_fits(timed: TimedStore) -> None:
    limits = [limit(kind, MAX_COUNT) for kind in ("day", "bucket")]
    for one in limits:
        for cost in (2**53, 2**53 + 1, 2**63 + 1, 2**80):
            assert not await timed.admits(f"{one.kind}-{cost}", (one, cost))
        assert await timed.admits(f"{one.kind}-all-but-one", (one, MAX_COUNT - 1))
        assert not await timed.admits(f"{one.kind}-two", (one, 2))
        assert await timed.admits(f"{one.kind}-the-last", (one, 1))
    assert await timed.used(*limits) == [MAX_COUNT, MAX_COUNT]


async def test_limits_of_everybody_and_of_a_tenant_are_taken_settled_and_refused_together(timed: TimedStore) -> None:
    everybodys = limit("day", 10, key="gw:{all}:everybodys")
    at_once = limit("lease", 2, key="gw:{all}:at-once")
    first = reservation("first", (everybodys, 6), (DAILY, 4), (at_once, 1), (AT_ONCE, 1))
    for _ in range(2):
        answer = await timed.store.reserve(first)
        assert answer.admitted
        assert [used for used, _ in answer.levels] == [0, 0, 0, 0]
    over = [(everybodys, 5), (DAILY, 1)], [(everybodys, 1), (DAILY, 7)], [(DAILY, 7), (everybodys, 5)]
    for number, asked in enumerate(over):
        refused = await timed.store.reserve(reservation(f"refused-{number}", *asked, (at_once, 1), (AT_ONCE, 1)))
        assert not refused.admitted
        assert [used for used, _ in refused.levels] == [{everybodys: 6, DAILY: 4}[one] for one, _ in asked] + [1, 1]
    assert await timed.used(everybodys, DAILY, at_once, AT_ONCE) == [6, 4, 1, 1]
    await timed.after(LEASE_S - 1)
    await timed.store.renew([first])
    await timed.after(LEASE_S - 1)
    assert await timed.used(everybodys, DAILY, at_once, AT_ONCE) == [6, 4, 1, 1]
    for _ in range(2):
        timed.store.settle(first.settlement(Usage(1, 2)))
    assert await timed.used(everybodys, DAILY, at_once, AT_ONCE) == [3, 3, 0, 0]
    unseen = reservation("unseen", (everybodys, 4), (DAILY, 4))
    for _ in range(2):
        timed.store.settle(unseen.settlement(Usage(1, 1), uncertain=True))
    await timed.store.reserve(unseen)
    assert await timed.used(everybodys, DAILY) == [5, 5]
    assert {place[-1]: figure for place, figure in (await timed.booked(None)).items()} == {
        "calls": 2,
        "refused": 3,
        "prompt_tokens": 2,
        "completion_tokens": 3,
    }


async def test_a_bucket_refills_evenly_and_in_whole_units(timed: TimedStore) -> None:
    assert await timed.admits("first", (PER_MINUTE, 10))
    await timed.after(5.999999)
    assert not await timed.admits("too early", (PER_MINUTE, 1))
    await timed.after(0.000001)
    assert await timed.admits("one unit", (PER_MINUTE, 1))
    await timed.after(6 * 9 + 5)
    assert await timed.used(PER_MINUTE) == [1]
    await timed.after(1)
    assert await timed.used(PER_MINUTE) == [0]


async def test_a_full_bucket_saves_no_time_up(timed: TimedStore) -> None:
    await timed.after(3600)
    for first in range(10):
        assert await timed.admits(f"call-{first}", (PER_MINUTE, 1))
    assert not await timed.admits("eleventh", (PER_MINUTE, 1))


async def test_settling_gives_back_what_was_not_used(timed: TimedStore) -> None:
    asked = reservation("call", (PER_MINUTE, 8), (DAILY, 9), (AT_ONCE, 1))
    assert (await timed.store.reserve(asked)).admitted
    timed.store.settle(asked.settlement(Usage(1, 2)))
    assert await timed.used(PER_MINUTE, DAILY, AT_ONCE) == [3, 3, 0]


async def test_giving_back_leaves_nothing_charged(timed: TimedStore) -> None:
    asked = reservation("call", (PER_MINUTE, 8), (DAILY, 9), (AT_ONCE, 1))
    assert (await timed.store.reserve(asked)).admitted
    timed.store.settle(asked.settlement(None))
    assert await timed.used(PER_MINUTE, DAILY, AT_ONCE) == [0, 0, 0]


async def test_settling_may_go_below_zero_and_then_refuses_until_refilled(timed: TimedStore) -> None:
    asked = reservation("call", (PER_MINUTE, 5))
    assert (await timed.store.reserve(asked)).admitted
    timed.store.settle(asked.settlement(Usage(10, 10)))
    assert await timed.used(PER_MINUTE) == [20]
    await timed.after(60)
    assert not await timed.admits("still below", (PER_MINUTE, 1))
    await timed.after(6)
    assert await timed.admits("refilled", (PER_MINUTE, 1))


async def test_a_settlement_that_comes_twice_counts_once(timed: TimedStore) -> None:
    asked = reservation("call", (PER_HOUR, 500), (DAILY, 1), (AT_ONCE, 1))
    assert (await timed.store.reserve(asked)).admitted
    for _ in range(3):
        timed.store.settle(asked.settlement(Usage(2, 2)))
    assert await timed.used(PER_HOUR, DAILY, AT_ONCE) == [4, 4, 0]


async def test_a_reservation_that_comes_twice_counts_once(timed: TimedStore) -> None:
    asked = reservation("call", (PER_MINUTE, 8), (DAILY, 6), (AT_ONCE, 1))
    first = await timed.store.reserve(asked)
    second = await timed.store.reserve(asked)
    assert second.admitted
    assert [used for used, _ in second.levels] == [used for used, _ in first.levels] == [0, 0, 0]
    assert await timed.used(PER_MINUTE, DAILY, AT_ONCE) == [8, 6, 1]


async def test_a_reservation_that_comes_twice_tells_again_which_shadows_it_was_charged(timed: TimedStore) -> None:
    shadow, shadow_at_once = limit("day", 10, shadow=True), limit("lease", 1, shadow=True)
    fits = reservation("fits", (shadow, 8), (shadow_at_once, 1), (PER_MINUTE, 1))
    over = reservation("over", (shadow, 3), (shadow_at_once, 1), (PER_MINUTE, 1))
    for asked in (fits, over):
        assert (await timed.store.reserve(asked)).admitted
    timed.store.settle(reservation("unseen", (shadow, 1)).settlement(Usage(30, 0), uncertain=True))
    assert (await timed.store.reserve(fits)).fits(fits) == [True, True, True]
    assert (await timed.store.reserve(over)).fits(over) == [False, False, True]
    timed.store.settle(fits.settlement(None))
    assert (await timed.store.reserve(over)).fits(over) == [False, False, True]


async def test_a_settlement_without_a_reservation_changes_nothing(timed: TimedStore) -> None:
    await timed.admits("other", (PER_MINUTE, 5), (DAILY, 5), (AT_ONCE, 1))
    timed.store.settle(reservation("unknown", (PER_MINUTE, 5), (DAILY, 5), (AT_ONCE, 1)).settlement(Usage(9, 9)))
    timed.store.settle(reservation("refused", (PER_MINUTE, 5), (DAILY, 5), (AT_ONCE, 1)).settlement(None))
    assert await timed.used(PER_MINUTE, DAILY, AT_ONCE) == [5, 5, 1]


async def test_a_reservation_that_arrives_after_its_settlement_takes_nothing(timed: TimedStore) -> None:
    late = reservation("late", (PER_MINUTE, 5), (DAILY, 5), (AT_ONCE, 1))
    timed.store.settle(late.settlement(None, uncertain=True))
    timed.store.settle(late.settlement(None, uncertain=True))
    await timed.store.reserve(late)
    assert await timed.used(PER_MINUTE, DAILY, AT_ONCE) == [0, 0, 0]


async def test_a_settlement_of_an_unseen_reservation_applies_where_that_was_taken(timed: TimedStore) -> None:
    unseen = reservation("unseen", (PER_MINUTE, 5), (AT_ONCE, 1))
    await timed.store.reserve(unseen)
    timed.store.settle(unseen.settlement(Usage(1, 1), uncertain=True))
    assert await timed.used(PER_MINUTE, AT_ONCE) == [2, 0]


async def test_a_call_that_the_store_never_saw_is_charged_what_it_used_once(timed: TimedStore) -> None:
    calls = limit("day", 10, rule="calls", measure="requests")
    unseen = reservation("unseen", (PER_HOUR, 500), (DAILY, 9), (calls, 1), (AT_ONCE, 1))
    for _ in range(3):
        timed.store.settle(unseen.settlement(Usage(2, 2), uncertain=True))
    await timed.store.reserve(unseen)  # arrives late
    assert await timed.used(PER_HOUR, DAILY, calls, AT_ONCE) == [4, 4, 1, 0]


async def test_a_call_that_the_store_refused_unseen_is_charged_what_it_used(timed: TimedStore) -> None:
    refused = reservation("refused", (DAILY, 11))
    assert not (await timed.store.reserve(refused)).admitted
    timed.store.settle(refused.settlement(Usage(2, 2), uncertain=True))
    assert await timed.used(DAILY) == [4]


async def test_what_was_held_back_counts_in_its_own_period_and_buckets_have_refilled_since(timed: TimedStore) -> None:
    ends = [NOON_US - 13 * 3600 * SECOND, NOON_US - 30 * SECOND, NOON_US + 3600 * SECOND]
    for number, ended_us in enumerate(ends):
        late = reservation(f"late-{number}", (PER_MINUTE, 1), (DAILY, 1), (MONTHLY, 1)).settlement(
            Usage(3, 5), uncertain=True
        )
        late.ended_us = ended_us
        timed.store.settle(late)
    # Yesterday's has left the bucket and the day, half a minute gives back 5, and no clock of ours is ahead.
    assert await timed.used(PER_MINUTE, DAILY, MONTHLY) == [0 + 3 + 8, 0 + 8 + 8, 8 + 8 + 8]


async def test_a_day_ends_at_midnight_utc(timed: TimedStore) -> None:
    assert await timed.admits("today", (DAILY, 10))
    await timed.after(12 * 3600 - 0.000001)
    assert not await timed.admits("still today", (DAILY, 1))
    await timed.after(0.000001)
    assert await timed.used(DAILY) == [0]
    assert await timed.admits("tomorrow", (DAILY, 10))


async def test_of_calls_around_midnight_each_day_admits_its_own(timed: TimedStore) -> None:
    await timed.after(12 * 3600 - 0.000001)
    for day in ("old", "new"):
        answers = await asyncio.gather(*[timed.admits(f"{day}-{i}", (DAILY, 1)) for i in range(100)])
        assert answers.count(True) == 10
        await timed.after(0.000001)


@pytest.mark.parametrize("year", [2026, 2027, 2028, 2099])
async def test_months_end_where_the_calendar_says(timed: TimedStore, year: int) -> None:
    calls = count()
    for month in range(1, 13):
        first = int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * SECOND
        last = int(datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()) * SECOND - 1
        await timed.at(first)
        answer = await timed.store.reserve(reservation(f"call-{next(calls)}", (MONTHLY, 10)))
        assert answer.admitted
        assert list(answer.levels) == [(0, last + 1 - first)]
        await timed.at(last)
        assert not await timed.admits("the same month", (MONTHLY, 1))


async def test_a_settlement_does_not_touch_a_later_period(timed: TimedStore) -> None:
    old = reservation("old", (DAILY, 5), (MONTHLY, 5))
    await timed.store.reserve(old)
    await timed.at(NOON_US + 2 * DAY - 3600 * SECOND)
    await timed.store.renew([old])
    await timed.at(NOON_US + 2 * DAY)
    await timed.admits("new", (DAILY, 3), (MONTHLY, 3))
    timed.store.settle(old.settlement(Usage(0, 1)))
    assert await timed.used(DAILY, MONTHLY) == [3, 3]


async def test_a_lease_that_nobody_renews_frees_its_slot(timed: TimedStore) -> None:
    assert await timed.admits("killed", (AT_ONCE, 1))
    assert await timed.admits("killed too", (AT_ONCE, 1))
    await timed.after(LEASE_S - 0.000001)
    assert not await timed.admits("early", (AT_ONCE, 1))
    await timed.after(0.000001)
    assert await timed.used(AT_ONCE) == [0]
    assert await timed.admits("late", (AT_ONCE, 1))


async def test_a_renewed_lease_outlasts_its_time(timed: TimedStore) -> None:
    long = reservation("long", (AT_ONCE, 1))
    assert (await timed.store.reserve(long)).admitted
    for _ in range(5):
        await timed.after(LEASE_S - 1)
        await timed.store.renew([long])
    assert await timed.used(AT_ONCE) == [1]
    timed.store.settle(long.settlement(None))
    assert await timed.used(AT_ONCE) == [0]


async def test_a_renewal_takes_back_a_slot_that_had_run_out_but_none_of_an_ended_call(timed: TimedStore) -> None:
    stalled, ended = reservation("stalled", (AT_ONCE, 1)), reservation("ended", (AT_ONCE, 1))
    await timed.store.reserve(stalled)
    await timed.store.reserve(ended)
    timed.store.settle(ended.settlement(None))
    await timed.after(2 * LEASE_S)
    await timed.store.renew([stalled, ended, reservation("unknown", (AT_ONCE, 1))])
    assert await timed.used(AT_ONCE) == [1]


async def test_ending_a_call_whose_lease_ran_out_frees_nobody_elses_slot(timed: TimedStore) -> None:
    slow = reservation("slow", (AT_ONCE, 1))
    await timed.store.reserve(slow)
    await timed.after(2 * LEASE_S)
    assert await timed.admits("a", (AT_ONCE, 1))
    assert await timed.admits("b", (AT_ONCE, 1))
    timed.store.settle(slow.settlement(None))
    assert await timed.used(AT_ONCE) == [2]


async def test_a_record_lasts_a_week_and_longer_when_renewed(timed: TimedStore) -> None:
    yearly = limit("bucket", 10, window_s=366 * 86_400)
    forgotten, renewed = reservation("forgotten", (yearly, 2)), reservation("renewed", (yearly, 2))
    await timed.store.reserve(forgotten)
    await timed.store.reserve(renewed)
    await timed.after(7 * 86_400 - 1)
    await timed.store.renew([renewed])
    await timed.after(1)
    timed.store.settle(forgotten.settlement(None))
    timed.store.settle(renewed.settlement(None))
    assert await timed.used(yearly) == [2]


async def test_a_shadow_never_refuses_and_charges_only_what_it_would_have_admitted(timed: TimedStore) -> None:
    shadow, shadow_at_once = limit("day", 10, shadow=True), limit("lease", 1, shadow=True)
    first = await timed.store.reserve(reservation("first", (shadow, 8), (shadow_at_once, 1), (PER_MINUTE, 1)))
    over = reservation("over", (shadow, 3), (shadow_at_once, 1), (PER_MINUTE, 1))
    second = await timed.store.reserve(over)
    assert first.admitted
    assert second.admitted
    assert second.fits(over) == [False, False, True]
    assert await timed.used(shadow, shadow_at_once, PER_MINUTE) == [8, 1, 2]


async def test_a_limit_of_zero_admits_nothing_not_even_a_free_call(timed: TimedStore) -> None:
    for kind in ("bucket", "day", "month"):
        assert not await timed.admits("free", (limit(kind, 0), 0))
    assert not await timed.admits("call", (limit("lease", 0), 1))


async def test_a_limit_that_was_lowered_to_zero_refuses_and_settles(timed: TimedStore) -> None:
    asked = reservation("call", (limit("bucket", 10, rule="tokens"), 5))
    await timed.store.reserve(asked)
    assert not await timed.admits("later", (limit("bucket", 0, rule="tokens"), 1))
    timed.store.settle(asked.settlement(None))
    assert await timed.used(limit("bucket", 10, rule="tokens")) == [0]


async def test_a_clock_that_goes_back_neither_refills_nor_locks(timed: TimedStore) -> None:
    assert await timed.admits("first", (PER_MINUTE, 10))
    await timed.after(-3600)
    assert await timed.used(PER_MINUTE) == [10]
    assert not await timed.admits("second", (PER_MINUTE, 1))
    assert await timed.admits("other", (PER_HOUR, 1))
    await timed.after(-1)
    await timed.admits("touch", (PER_HOUR, 1))
    await timed.after(3600)
    assert await timed.used(PER_HOUR) == [0]
