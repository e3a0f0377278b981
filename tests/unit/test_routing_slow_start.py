"""A replica that has come back gets little at first, and all of its share in the end."""

import random

import pytest

from gateway.config import PoolEntry
from gateway.routing.pool import COLD, Pool
from tests.identity_provider import SetClock


def pool_of(clock: SetClock, **entry: object) -> Pool:
    given = {"replicas": ["http://a:1", "http://b:1"], "slow_start": "10s", **entry}
    return Pool("p", PoolEntry.model_validate(given), random.Random(1), clock)


def share_of_the_second(pool: Pool, calls: int = 1000) -> float:
    """Return how many of so many calls, which all stay in flight, the second replica gets."""
    for replica in pool.replicas:
        replica.in_flight = 0
    for _ in range(calls):
        pool.lend().__enter__()
    return pool.replicas[1].in_flight / calls


@pytest.mark.parametrize("balance", ["least_requests", "round_robin"])
def test_its_share_grows_with_time(balance: str) -> None:
    clock = SetClock(time=100.0)
    pool = pool_of(clock, balance=balance)
    pool.warm_up(pool.replicas[1])
    assert share_of_the_second(pool) == pytest.approx(COLD / (1 + COLD), abs=0.01)
    clock.advance(5)
    assert share_of_the_second(pool) == pytest.approx(0.5 / 1.5, abs=0.01)
    clock.advance(5.1)
    assert share_of_the_second(pool) == pytest.approx(0.5, abs=0.01)
    assert not pool.held_back


def test_alone_it_gets_everything_at_once() -> None:
    pool = pool_of(SetClock(time=100.0))
    pool.warm_up(pool.replicas[1])
    pool.replicas[0].up = False
    assert share_of_the_second(pool, calls=10) == 1


def test_without_slow_start_it_gets_its_share_at_once() -> None:
    pool = pool_of(SetClock(time=100.0), slow_start="0s")
    pool.warm_up(pool.replicas[1])
    assert share_of_the_second(pool) == 0.5
    assert not pool.held_back


def test_a_breaker_that_closes_and_other_entries_do_not_end_it_early() -> None:
    clock = SetClock(time=100.0)
    pool = pool_of(clock)
    pool.closed(pool.replicas[1])
    pool.configure(PoolEntry.model_validate({"replicas": ["http://a:1", {"url": "http://b:1", "weight": 3}]}))
    clock.advance(1)
    assert share_of_the_second(pool) == pytest.approx(0.3 / 1.3, abs=0.01)
    clock.advance(9.1)
    assert share_of_the_second(pool) == pytest.approx(3 / 4, abs=0.01)
