"""Memory and the server's Lua answer alike, step by step, whatever calls do and however large the numbers are."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from importlib import resources
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.limit import Limit, refill
from gateway.admission.reservation import Settlement
from gateway.calls.usage import Usage
from tests.limiting import DAY, NOON_US, PROBE, SECOND, TimedStore, limit, reservation, timed_memory
from tests.store_kinds import timed_kind
from tests.store_server import StoreServer

HUGE = 2**53 - 1
YEAR_US = 366 * DAY
FIGURES = st.one_of(st.integers(1, 20), st.sampled_from([997, 49_999_991, 2**31 - 1, HUGE - 111, HUGE]))
WINDOWS_S = st.sampled_from([0.1, 1, 0.333333, 60, 3600, 86_400, 2_678_399.999999, 366 * 86_400])
COUNTED = st.builds(
    lambda kind, figure, window_s, shadow: limit(kind, figure, window_s=window_s, shadow=shadow),
    st.sampled_from(["bucket", "bucket", "day", "month", "lease"]),
    FIGURES,
    WINDOWS_S,
    st.booleans(),
)
ELAPSED_US = st.one_of(
    st.integers(0, 2 * SECOND),
    st.integers(0, 3 * DAY),
    st.integers(0, 40 * DAY),
    st.sampled_from([1, 59_999_999]),
)
CALLS = st.integers(0, 5)
USED = st.integers(0, 3) | st.just(2**32)
USAGES = st.none() | st.builds(Usage, USED, USED, USED, USED, st.sampled_from(["engine", "estimated"]))
Step = tuple[Any, ...]

REFILLS = """
local replies = {}
for i = 1, #ARGV, 5 do
  local used, at, now = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local left, since = refill(used, at, now, tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]))
  replies[#replies + 1] = text(left)
  replies[#replies + 1] = text(since)
end
return replies
"""


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    buckets=st.lists(
        st.tuples(
            st.one_of(st.integers(1, HUGE), st.integers(HUGE - 1000, HUGE)),
            st.one_of(st.integers(0, 3 * YEAR_US), st.sampled_from([2**42, 2**43])),
            st.one_of(st.integers(1, HUGE), st.integers(1, 100), st.sampled_from([2**40, 3 * 2**40, HUGE])),
            st.one_of(st.integers(100_000, YEAR_US), st.sampled_from([2**44, 3 * 2**42, YEAR_US])),
        ),
        min_size=20,
        max_size=20,
    )
)
def test_lua_refills_exactly_where_a_double_would_round(
    buckets: list[tuple[int, int, int, int]],
    shared_store_server: StoreServer,
) -> None:
    windows = resources.files("gateway.admission.redis").joinpath("windows.lua").read_text()
    numbers = [(used, NOON_US, NOON_US + dt_us, figure, window_us) for used, dt_us, figure, window_us in buckets]
    with shared_store_server.client() as client:
        replies = [int(reply) for reply in client.eval(windows + REFILLS, 0, *[n for row in numbers for n in row])]
    expected = [
        refill(used, at_us, now_us=now_us, limit=figure, window_us=window_us)
        for used, at_us, now_us, figure, window_us in numbers
    ]
    assert list(zip(replies[::2], replies[1::2], strict=True)) == expected


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[list[Limit], list[Step]]:
    limits = draw(st.lists(COUNTED, min_size=1, max_size=4, unique_by=lambda one: one.key))
    costs = st.tuples(*[_cost(one) for one in limits])
    deltas = st.tuples(*[st.one_of(st.integers(-20, 20), st.integers(-HUGE, HUGE)) for _ in limits])
    charges = st.none() | st.tuples(*[st.one_of(st.integers(0, 20), st.integers(0, HUGE)) for _ in limits])
    late_us = st.just(None) | ELAPSED_US
    step = st.one_of(
        st.tuples(st.just("reserve"), CALLS, costs),
        st.tuples(st.just("settle"), CALLS, deltas, USAGES, st.booleans(), charges, late_us),
        st.tuples(st.just("renew"), CALLS),
        st.tuples(st.just("wait"), ELAPSED_US),
    )
    return limits, draw(st.lists(step, min_size=1, max_size=25))


def _cost(one: Limit) -> st.SearchStrategy[int]:
    if one.kind == "lease":
        return st.just(1)
    return st.one_of(st.integers(0, 20), st.integers(0, one.limit), st.just(one.limit), st.just(one.limit + 1))


EXAMPLES = {"redis": 150, "sentinel": 40, "cluster": 40}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_memory_and_lua_agree_at_every_step(request: pytest.FixtureRequest, kind: str) -> None:
    @settings(
        max_examples=EXAMPLES[kind],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(scenario=scenarios())
    def agree(scenario: tuple[list[Limit], list[Step]]) -> None:
        limits, steps = scenario
        asyncio.run(_agree(kind, request, limits, steps))

    agree()


async def _agree(kind: str, request: pytest.FixtureRequest, limits: list[Limit], steps: list[Step]) -> None:
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(timed_memory())
        shared = await stack.enter_async_context(timed_kind(kind, request))
        for step in _with_ids(steps, used_once=shared.store.may_forget):
            seen = [await _take(step, limits, timed) for timed in (memory, shared)]
            assert seen[0] == seen[1], step
        assert await memory.booked(None) == await shared.booked(None)


def _with_ids(steps: list[Step], *, used_once: bool) -> Iterator[Step]:
    """Yield the steps with calls' ids for their numbers; where that is to be, a call that was settled never returns."""
    lives: Counter[int] = Counter()
    settled: set[int] = set()
    for kind, *rest in steps:
        if kind == "wait":
            yield (kind, *rest)
            continue
        call = rest[0]
        if used_once and kind != "renew" and call in settled:
            settled.discard(call)
            lives[call] += 1
        if kind == "settle":
            settled.add(call)
        yield (kind, f"call-{call}-{lives[call]}", *rest[1:])


async def _take(step: Step, limits: list[Limit], timed: TimedStore) -> object:
    """Take one step, and return all that can be seen afterwards."""
    kind, *rest = step
    admitted = None
    if kind == "reserve":
        call, costs = rest
        admitted = await timed.store.reserve(reservation(call, *zip(limits, costs, strict=True)))
    elif kind == "settle":
        call, deltas, usage, uncertain, charges, late_us = rest
        asked = reservation(call, *zip(limits, deltas, strict=True))
        settlement = Settlement(asked.call_id, asked.account, asked.limits, asked.costs, usage, uncertain)
        if uncertain:
            settlement.charges = charges
        if late_us is not None:
            settlement.ended_us = timed.now_us - late_us
        timed.store.settle(settlement)
    elif kind == "renew":
        await timed.store.renew([reservation(rest[0], *zip(limits, [0] * len(limits), strict=True))])
    else:
        await timed.at(timed.now_us + rest[0])
    asked = reservation("probe", *[(one, 2**60) for one in limits], (limit("day", 0), 1), account=PROBE)
    levels = await timed.store.reserve(asked)
    return admitted and (admitted.admitted, list(admitted.levels)), list(levels.levels)
