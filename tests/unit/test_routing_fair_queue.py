"""Whose turn it is: nothing is lost, everybody gets the share that is due, and whoever floods makes way."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.config import Priority
from gateway.routing.deficit_round_robin import DeficitRoundRobin
from gateway.routing.drain_rate import DrainRate
from gateway.routing.fair_queue import WEIGHTS, FairQueue

PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
COSTS = st.integers(1, 5000)


class Asked:
    """A call that waits."""

    def __init__(self, tenant: str, cost: int = 100, priority: Priority = "normal") -> None:
        self.tenant, self.cost = tenant, cost
        self.priority: Priority = priority


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(COSTS, min_size=1, max_size=40), min_size=2))
def test_tenants_that_wait_all_the_time_get_the_same_but_for_three_calls(costs: dict[str, list[int]]) -> None:
    lines: DeficitRoundRobin[Asked] = DeficitRoundRobin()
    for tenant, line in costs.items():
        for cost in line:
            lines.add(Asked(tenant, cost))
    dearest, took, left = max(max(line) for line in costs.values()), Counter[str](), Counter(map_lengths(costs))
    while all(left.values()):
        call = lines.pop()
        took[call.tenant] += call.cost
        left[call.tenant] -= 1
        assert max(took[t] for t in costs) - min(took[t] for t in costs) <= 3 * dearest


def map_lengths(costs: dict[str, list[int]]) -> dict[str, int]:
    return {tenant: len(line) for tenant, line in costs.items()}


@given(st.lists(st.tuples(st.sampled_from("ab"), COSTS), min_size=1))
def test_calls_of_a_tenant_go_in_the_order_in_which_they_came(asked: list[tuple[str, int]]) -> None:
    queue: FairQueue[Asked] = FairQueue()
    calls = [Asked(tenant, cost) for tenant, cost in asked]
    for call in calls:
        queue.add(call)
    gone = [queue.pop() for _ in calls]
    for tenant in "ab":
        assert [c for c in gone if c.tenant == tenant] == [c for c in calls if c.tenant == tenant]


def test_one_call_of_another_tenant_waits_for_one_call_of_a_flood() -> None:
    queue: FairQueue[Asked] = FairQueue()
    for _ in range(5000):
        queue.add(Asked("flood"))
    queue.pop()
    queue.add(single := Asked("quiet"))
    assert single in [queue.pop(), queue.pop()]


def test_a_call_that_is_dearer_than_all_others_together_goes_in_the_end() -> None:
    queue: FairQueue[Asked] = FairQueue()
    for call in (dear := Asked("a", 10**9), *(Asked("b", 1) for _ in range(10))):
        queue.add(call)
    assert dear in [queue.pop() for _ in range(11)]
    queue.add(dear)
    assert queue.pop() is dear


def test_classes_share_tokens_by_weight_and_none_stands_still() -> None:
    queue: FairQueue[Asked] = FairQueue()
    for priority in PRIORITIES:
        for _ in range(1000):
            queue.add(Asked("acme", 100, priority))
    took = Counter(queue.pop().priority for _ in range(420))
    for priority, weight in WEIGHTS.items():
        assert abs(took[priority] - 20 * weight) <= 1


def test_a_class_that_did_not_wait_has_saved_nothing_up() -> None:
    queue: FairQueue[Asked] = FairQueue()
    for _ in range(500):
        queue.add(Asked("acme", 100, "high"))
    for _ in range(400):
        queue.pop()
    for _ in range(100):
        queue.add(Asked("acme", 100, "low"))
    assert Counter(queue.pop().priority for _ in range(34))["low"] <= 3


def test_a_class_that_comes_is_not_put_behind_who_fell_back_while_places_were_kept_from_it() -> None:
    queue: FairQueue[Asked] = FairQueue()
    for _ in range(500):
        queue.add(Asked("flood", 100, "normal"))
    for _ in range(500):
        queue.add(Asked("quiet", 100, "low"))
    for _ in range(40):
        assert queue.pop_of(lambda tenant: tenant == "quiet")
    for _ in range(500):
        queue.add(Asked("acme", 100, "high"))
    took = Counter(queue.pop().priority for _ in range(40))
    assert took["high"] >= 4 * took["normal"] - 1


class Places(RuleBasedStateMachine):
    """Calls come, go, leave and displace each other, at a queue that has ten places."""

    MOST = 10

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Asked] = FairQueue()
        self.there: dict[Asked, None] = {}

    @rule(tenant=st.sampled_from("abcd"), cost=COSTS, priority=st.sampled_from(PRIORITIES))
    def comes(self, tenant: str, cost: int, priority: Priority) -> None:
        call = Asked(tenant, cost, priority)
        if len(self.queue) >= self.MOST:
            displaced = self.queue.displaced_by(call)
            if displaced is None:
                longest = max(Counter(c.tenant for c in self.of(priority)).values(), default=0)
                mine = [c for c in self.of(priority) if c.tenant == tenant]
                assert longest <= len(mine) + 1
                return
            if displaced.priority == priority:
                assert self.length(displaced) > self.length(call) + 1
            self.queue.remove(displaced)
            del self.there[displaced]
        self.queue.add(call)
        self.there[call] = None

    def of(self, priority: Priority) -> list[Asked]:
        return [call for call in self.there if call.priority == priority]

    def length(self, call: Asked) -> int:
        return sum(other.tenant == call.tenant for other in self.of(call.priority))

    @precondition(lambda self: self.there)
    @rule()
    def goes(self) -> None:
        call = self.queue.pop()
        assert call is next(c for c in self.of(call.priority) if c.tenant == call.tenant)
        del self.there[call]

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from([*self.there]))
        self.queue.remove(call)
        del self.there[call]

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.queue) == len(self.there) == len({*self.queue})
        assert all(call in self.queue for call in self.there)
        assert all(self.queue.waiting(priority) == len(self.of(priority)) for priority in PRIORITIES)
        by_line: defaultdict[tuple[str, str], int] = defaultdict(int)
        for call in self.there:
            by_line[call.priority, call.tenant] += 1
        for call in self.there:
            assert by_line[call.priority, call.tenant] == self.length(call)


TestPlaces = Places.TestCase


@pytest.mark.parametrize("flooded", PRIORITIES)
def test_a_flood_of_one_class_leaves_the_others_their_places(flooded: Priority) -> None:
    queue: FairQueue[Asked] = FairQueue()
    for _ in range(42):
        queue.add(Asked("flood", priority=flooded))
    for priority in PRIORITIES:
        if priority != flooded:
            displaced = queue.displaced_by(Asked("quiet", priority=priority))
            assert displaced is not None
            assert displaced.priority == flooded
    assert queue.displaced_by(Asked("flood", priority=flooded)) is None


@given(st.floats(0.05, 50), st.integers(1, 500))
def test_the_wait_is_told_by_the_pace_at_which_slots_became_free(per_second: float, calls: int) -> None:
    rate, now = DrainRate(), 1000.0
    rate.note(now, waiting=True)
    for _ in range(400):
        now += 1 / per_second
        rate.freed(now)
    told = rate.wait_s(calls, now)
    assert told is not None
    assert 0.3 <= told * per_second / calls <= 1.2


def test_what_happened_while_nobody_waited_says_nothing() -> None:
    rate = DrainRate()
    for second in range(100):
        rate.freed(second)
    assert rate.wait_s(5, 100) is None
    rate.note(100, waiting=True)
    for tenth in range(1, 21):
        rate.freed(100 + tenth / 10)
    rate.note(102, waiting=False)
    told = [rate.wait_s(5, now) for now in (102, 1000)]
    assert [round(seconds or 0, 2) for seconds in told] == [0.5, 0.5]
    assert all(first == second for first, second in pairwise(told))
