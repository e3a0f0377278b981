"""A waiting room keeps its bounds and its counts, whatever becomes of its pool's config and replicas meanwhile."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import PoolEntry
from gateway.errors import Overloaded, QueueFull, Refusal
from gateway.routing.loan import Loan
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica
from gateway.routing.second_tries import SecondTries
from gateway.routing.waiting_room import KEPT_S, Waiter, WaitingRoom
from tests.identity_provider import SetClock


class Reply:
    """Where a call that waits is told."""

    def __init__(self) -> None:
        self.told: Loan | Refusal | None = None

    def done(self) -> bool:
        return self.told is not None

    def set_result(self, result: Loan | Refusal, /) -> None:
        assert self.told is None
        self.told = result

    @property
    def loan(self) -> Loan:
        assert isinstance(self.told, Loan)
        return self.told


def entry_of(replicas: int, **entry: object) -> PoolEntry:
    urls = [f"http://10.0.0.{number}:8000" for number in range(replicas)]
    return PoolEntry.model_validate({"replicas": urls, "breaker": {"failures": 1, "open_for": "10s"}, **entry})


def pool_of(clock: SetClock, replicas: int = 1, **entry: object) -> Pool:
    return Pool("main", entry_of(replicas, **entry), random.Random(1), clock)


def room_of(pool: Pool) -> WaitingRoom:
    assert pool.room is not None
    return pool.room


def comes(pool: Pool, tenant: str = "acme", *, again: bool = False) -> Reply:
    """Have a call come: it is lent a replica, or waits. One that comes `again` was at the first replica before."""
    reply = Reply()
    tried = pool.replicas[:1] if again else ()
    loan = room_of(pool).lend(Waiter(reply, tenant, "normal", cost=10, tried=tried, again=again))
    if loan is not None:
        reply.set_result(loan)
    return reply


async def test_calls_that_were_at_a_replica_are_bounded_too() -> None:
    """Each gives its slot to the next call, which may fare alike: they could be as many as come."""
    pool = pool_of(SetClock(), 2, queue={"max_waiting": 3})
    pool.rest(pool.replicas[1], 60)
    for _ in range(3):
        assert comes(pool, again=True).told is None
    with pytest.raises(QueueFull):
        comes(pool, again=True)
    assert len(room_of(pool)) == 3


async def test_a_call_from_a_room_that_was_given_up_is_nobodys_in_the_next() -> None:
    pool = pool_of(SetClock(), max_in_flight=2)
    before = comes(pool)
    pool.configure(entry_of(1))
    assert pool.room is None
    pool.configure(entry_of(1, max_in_flight=2))
    room = room_of(pool)
    after = comes(pool)
    before.loan.give_back()
    assert room._in_flight == {"acme": 1}
    after.loan.give_back()
    assert (room._in_flight, pool.replicas[0].in_flight) == ({}, 0)


async def test_a_room_that_nobody_wants_any_more_takes_nobody_and_goes_with_the_last_that_waits() -> None:
    clock = SetClock()
    pool = pool_of(clock, queue={})
    pool.rest(pool.replicas[0], 5)
    waits = comes(pool)
    pool.configure(entry_of(1))
    room = room_of(pool)
    with pytest.raises(Overloaded):
        comes(pool)
    clock.advance(5)
    room.look()
    waits.loan.give_back()
    pool.vacate()
    assert pool.room is None


async def test_who_had_a_place_for_a_moment_keeps_it_for_a_moment_however_long_another_had_his() -> None:
    clock = SetClock()
    pool = pool_of(clock, max_in_flight=8)
    long = comes(pool, "long")
    comes(pool, "another")
    clock.advance(10)
    short = comes(pool, "short")
    flood = [comes(pool, "flood") for _ in range(8)]
    waits = [one for one in flood if one.told is None]
    assert len(waits) == 3
    clock.advance(0.001)
    long.loan.give_back()
    short.loan.give_back()
    assert [one.told for one in waits] == [None] * 3  # the flood has more than its share
    clock.advance(KEPT_S / 2)
    room_of(pool).look()
    assert sum(one.told is not None for one in waits) == 1  # on the place of the short one
    clock.advance(KEPT_S)
    room_of(pool).look()
    assert sum(one.told is not None for one in waits) == 2


CALLS = st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=30)  # what each has tried, and whether it leaves


@given(CALLS, st.lists(st.integers(0, 7), max_size=10), st.integers(0, 7))
def test_second_tries_go_in_the_order_in_which_they_came_each_to_what_it_has_not_tried(
    calls: list[tuple[int, bool]], frees: list[int], last: int
) -> None:
    replicas = pool_of(SetClock(), 3).replicas

    def some(which: int) -> list[Replica]:
        return [replica for number, replica in enumerate(replicas) if which >> number & 1]

    tries: SecondTries[int] = SecondTries()
    model = {number: some(tried) for number, (tried, _) in enumerate(calls)}
    for number, tried in model.items():
        tries.add(number, tried)
    for number, (_, leaves) in enumerate(calls):
        if leaves:
            tries.remove(number)
            del model[number]
    for free in frees:
        would = [
            (call, left) for call, tried in model.items() if (left := [one for one in some(free) if one not in tried])
        ]
        assert tries.pop(some(free)) == (would[0] if would else None)
        if would:
            del model[would[0][0]]
        assert ([*tries], len(tries)) == ([*model], len(model))
    in_vain = [call for call, tried in model.items() if set(some(last)) <= set(tried)]
    assert sorted(tries.pop_in_vain(some(last))) == in_vain
    assert [*tries] == [call for call in model if call not in in_vain]


@pytest.mark.parametrize(
    ("rests_s", "opened_ago_s", "told"),
    [(30, 7, "3"), (2, 7, "2"), (30, 12, "10"), (30, None, "30")],
    ids=["the breaker", "the rest", "a call decides", "found down"],
)
def test_where_nobody_may_be_asked_the_client_is_told_when_the_first_may(
    rests_s: float, opened_ago_s: float | None, told: str
) -> None:
    clock = SetClock()
    pool = pool_of(clock, 2)
    full, ill = pool.replicas
    if opened_ago_s is None:
        ill.up = False
    else:
        Loan(pool, ill).fault("reset")
        clock.advance(opened_ago_s)
    pool.rest(full, rests_s)
    if opened_ago_s == 12:
        pool.lend().__enter__()
    with pytest.raises(Overloaded) as refused:
        pool.lend()
    assert refused.value.headers["Retry-After"] == told
