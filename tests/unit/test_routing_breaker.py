import random
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.config import BreakerEntry, PoolEntry
from gateway.errors import NoReplicaAvailable, Overloaded
from gateway.routing.breaker import Breaker
from gateway.routing.loan import Loan
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica
from tests.identity_provider import SetClock

ENTRY = BreakerEntry(failures=3, window="30s", open_for="10s")


def pool_of(replicas: int, clock: SetClock, **entry: object) -> Pool:
    urls = [f"http://10.0.0.{number}:8000" for number in range(replicas)]
    breaker = {"failures": 3, "window": "30s", "open_for": "10s"}
    given = PoolEntry.model_validate({"replicas": urls, "breaker": breaker, **entry})
    return Pool("p", given, random.Random(1), clock)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 5)), min_size=1, max_size=20))
def test_it_opens_at_enough_faults_close_together_with_no_more_good_calls_between(
    faults: list[tuple[float, int]],
) -> None:
    breaker, now = Breaker(ENTRY), 0.0
    seen: list[tuple[float, int]] = []
    for pause_s, good in faults:
        now += pause_s
        breaker.good += good
        seen.append((now, breaker.good))
        last = seen[-3:]
        expected = len(last) == 3 and now - last[0][0] <= 30 and breaker.good - last[0][1] <= 3
        assert breaker.fault(now) is expected
        assert breaker.open is expected
        if expected:
            return


def test_one_bad_call_in_ten_never_opens_it() -> None:
    breaker = Breaker(ENTRY)
    for number in range(1000):
        breaker.good += 9
        assert not breaker.fault(number / 10)


def test_without_an_entry_nothing_opens_it() -> None:
    breaker = Breaker(None)
    assert not any(breaker.fault(0.0) for _ in range(100))
    assert breaker.lets(0.0)
    assert not breaker.lend(0.0)


class Lending(RuleBasedStateMachine):
    """Three replicas whose calls begin, end well, fail and leave in any order, as time goes on."""

    panic_at, none_counts_from = 1.0, 3

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock()
        breaker = {"failures": 3, "window": "30s", "open_for": "10s", "panic_at": self.panic_at}
        self.pool = pool_of(3, self.clock, breaker=breaker)
        self.loans: list[tuple[ExitStack, Loan]] = []

    @rule()
    def lend(self) -> None:
        now = self.clock.monotonic()
        none_counts = sum(replica.breaker.open for replica in self.pool.replicas) >= self.none_counts_from
        let = [replica for replica in self.pool.replicas if replica.breaker.lets(now)]
        loan = self.pool.lend()  # whatever the breakers are, the pool never refuses
        held = ExitStack()
        replica = held.enter_context(loan)
        assert replica in (self.pool.replicas if none_counts else let)
        self.loans.append((held, loan))

    @precondition(lambda self: self.loans)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["well", "broken", "fault", "fault", "gone"]))
    def end(self, which: int, how: str) -> None:
        held, loan = self.loans.pop(which % len(self.loans))
        with held:
            if how in ("well", "broken"):
                loan.began()
            if how == "well":
                loan.ended_well()
            elif how != "gone":
                loan.fault("reset")

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def what_is_open_is_held_back(self) -> None:
        assert {r for r in self.pool.replicas if r.breaker.open} <= self.pool.held_back
        assert all(replica.breaker._deciding >= 0 for replica in self.pool.replicas)

    def teardown(self) -> None:
        for held, _ in self.loans:
            held.close()
        assert all(replica.breaker._deciding == 0 for replica in self.pool.replicas)
        self.clock.advance(10)  # nobody is on trial any more: each replica gets a call again
        lent = set()
        with ExitStack() as held:
            for _ in self.pool.replicas:
                loan = self.pool.lend()
                lent.add(held.enter_context(loan))
                loan.began()
        assert lent == set(self.pool.replicas)


class LendingInPanic(Lending):
    """The same where none counts once those of two are open."""

    panic_at, none_counts_from = 0.6, 2


TestLending = Lending.TestCase
TestLendingInPanic = LendingInPanic.TestCase


def half_open(clock: SetClock) -> tuple[Pool, Replica]:
    """Return a pool of two, and that of them whose breaker has been open for long enough; it has the fewest calls."""
    pool = pool_of(2, clock)
    ill, other = pool.replicas
    while not ill.breaker.open:
        Loan(pool, ill).fault("reset")
    other.in_flight = 1
    assert_lent(pool, other)
    clock.advance(10)
    return pool, ill


def assert_lent(pool: Pool, replica: Replica) -> None:
    with pool.lend() as lent:
        assert lent is replica


def test_exactly_one_call_decides() -> None:
    pool, ill = half_open(SetClock())
    with pool.lend() as lent:
        assert lent is ill
        for _ in range(5):
            assert_lent(pool, pool.replicas[1])
    assert_lent(pool, ill)  # the first said nothing: the next decides


def test_a_call_that_says_nothing_for_as_long_as_the_breaker_was_open_lets_another_decide() -> None:
    clock = SetClock()
    pool, ill = half_open(clock)
    with pool.lend() as lent:
        assert lent is ill
        clock.advance(9.9)
        assert_lent(pool, pool.replicas[1])
        assert pool.lends_more_at(clock.monotonic()) == pytest.approx(clock.monotonic() + 0.1)
        clock.advance(0.1)
        loan = Loan(pool, ill)
        with loan:
            assert not ill.breaker.lets(clock.monotonic())  # nor does the next keep it, but as long as the first
            loan.began()
        assert not ill.breaker.open


def test_an_answer_that_closed_the_breaker_and_broke_off_opens_it_at_once() -> None:
    clock = SetClock()
    pool, ill = half_open(clock)
    loan = pool.lend()
    with loan:
        loan.began()
        assert not ill.breaker.open
        loan.fault("reset")
    assert_lent(pool, pool.replicas[1])
    clock.advance(10)
    assert_lent(pool, ill)


def test_a_call_from_before_decides_nothing() -> None:
    clock = SetClock()
    pool = pool_of(2, clock)
    pool.replicas[1].in_flight = 1
    loan = pool.lend()
    with loan as ill:
        while not ill.breaker.open:
            Loan(pool, ill).fault("reset")
        clock.advance(9)
        loan.fault("reset")  # nor does it put off the time
        loan.began()
        loan.ended_well()
        assert ill.breaker.open
        clock.advance(1)
        assert ill.breaker.lets(clock.monotonic())


def test_a_full_replica_rests_for_as_long_as_it_asked_and_a_minute_at_most() -> None:
    clock = SetClock()
    pool = pool_of(2, clock)
    first, second = pool.replicas
    Loan(pool, first).full(7)
    with ExitStack() as held:
        assert {held.enter_context(pool.lend()) for _ in range(10)} == {second}
        Loan(pool, second).full(7000)
        with pytest.raises(Overloaded) as refused:
            pool.lend()
        assert refused.value.headers["Retry-After"] == "7"
        clock.advance(7)
        assert held.enter_context(pool.lend()) is first
        first.up = False
        with pytest.raises(Overloaded) as refused:
            pool.lend()
        assert refused.value.headers["Retry-After"] == "53"
        clock.advance(53)
        assert held.enter_context(pool.lend()) is second
    assert not pool.held_back
    second.up = False
    with pytest.raises(NoReplicaAvailable):
        pool.lend()


def test_a_pool_of_one_is_asked_whatever_its_breaker_says() -> None:
    clock = SetClock()
    pool = pool_of(1, clock)
    for _ in range(10):
        loan = pool.lend()
        with suppress(ZeroDivisionError), loan:
            loan.fault("connect")
            raise ZeroDivisionError
    assert pool.replicas[0].breaker.open
    loan = pool.lend()
    with loan:
        loan.began()
    assert not pool.replicas[0].breaker.open
