"""Each balance keeps its word: shares by weight, prefixes that stay where they are, none that floods a replica."""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import SystemClock
from gateway.config import PoolEntry
from gateway.routing.balance import BOUND, Balance, LeastRequests, PrefixAffinity, RoundRobin
from gateway.routing.engine_load import EngineLoad
from gateway.routing.pool import COLD, Pool
from gateway.routing.replica import Replica
from gateway.routing.split import Split

weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=8)
prefixes = st.integers(0, 2**64 - 1)


def pool_of(*weights: float, balance: str = "prefix_affinity", seed: int = 1) -> Pool:
    replicas = [{"url": f"http://10.0.0.{i}:8000", "weight": weight} for i, weight in enumerate(weights)]
    entry = PoolEntry.model_validate({"replicas": replicas, "balance": balance})
    return Pool("p", entry, random.Random(seed), SystemClock())


def replicas_of(*weights: float) -> Sequence[Replica]:
    return pool_of(*weights).replicas


def affinity() -> PrefixAffinity:
    return PrefixAffinity(random.Random(1))


def many(count: int) -> list[tuple[int]]:
    chance = random.Random(7)
    return [(chance.getrandbits(64),) for _ in range(count)]


def test_ties_of_least_requests_are_spread() -> None:
    replicas, balance = replicas_of(1, 1, 1), LeastRequests(random.Random(1))
    chosen = Counter(balance.choose(replicas, ()).name for _ in range(300))
    assert len(chosen) == 3
    assert min(chosen.values()) > 50


@pytest.mark.parametrize("balance", ["least_requests", "prefix_affinity"])
def test_a_heavier_replica_holds_more(balance: str) -> None:
    pool = pool_of(3, 1, balance=balance)
    with ExitStack() as held:
        for _ in range(8):
            held.enter_context(pool.lend())
        assert [replica.in_flight for replica in pool.replicas] == [6, 2]


@given(weights, st.integers(0, 99), st.integers(1, 60))
def test_round_robin_gives_each_its_share_at_all_times(weights: list[float], seed: int, calls: int) -> None:
    replicas, balance = replicas_of(*weights), RoundRobin(random.Random(seed))
    chosen = Counter(balance.choose(replicas, ()) for _ in range(calls))
    for replica in replicas:
        assert abs(chosen[replica] - calls * replica.weight / sum(weights)) < len(weights)
    rounds = 400
    chosen = Counter(balance.choose(replicas, ()) for _ in range(rounds))
    for replica in replicas:
        assert chosen[replica] / rounds == pytest.approx(replica.weight / sum(weights), abs=0.02)


def test_round_robin_spaces_turns_evenly() -> None:
    heavy, light = replicas_of(3, 1)
    balance = RoundRobin(random.Random(1))
    turns = [balance.choose((heavy, light), ()) for _ in range(40)]
    assert all(turns[at : at + 4].count(light) == 1 for at in range(37))


def test_round_robins_of_several_gateways_do_not_begin_alike() -> None:
    replicas = replicas_of(1, 1, 1)
    assert len({RoundRobin(random.Random(seed)).choose(replicas, ()) for seed in range(20)}) == 3


def test_round_robin_goes_on_around_a_replica_that_is_down_and_owes_it_nothing_afterwards() -> None:
    pool = pool_of(1, 1, 1, balance="round_robin")
    first, *others = pool.replicas
    first.up = False
    down = Counter(lent(pool) for _ in range(90))
    assert [down[replica] for replica in others] == [45, 45]
    first.up = True
    back = Counter(lent(pool) for _ in range(9))
    assert all(2 <= back[replica] <= 4 for replica in pool.replicas)


def lent(pool: Pool, *prefixes: int) -> Replica:
    with pool.lend(prefixes=prefixes) as replica:
        return replica


@given(weights, prefixes, st.integers(0, 99))
def test_a_prefix_means_the_same_replica_in_every_gateway_in_whatever_order_they_are_listed(
    weights: list[float], prefix: int, seed: int
) -> None:
    replicas = list(replicas_of(*weights))
    home = affinity().choose(replicas, (prefix,))
    random.Random(seed).shuffle(replicas)
    assert PrefixAffinity(random.Random(seed)).choose(replicas, (prefix,)).name == home.name


@given(weights, st.lists(prefixes, min_size=1, max_size=30), st.data())
def test_only_the_prefixes_of_a_replica_that_goes_or_comes_move(
    weights: list[float], keys: list[int], data: st.DataObject
) -> None:
    replicas, balance = replicas_of(*weights), affinity()
    left = data.draw(st.sampled_from(replicas))
    rest = [replica for replica in replicas if replica is not left]
    for prefix in keys:
        home = balance.choose(replicas, (prefix,))
        without = balance.choose(rest, (prefix,))
        assert without is home or home is left


@given(weights, st.lists(prefixes, min_size=1, max_size=30), st.data())
def test_while_a_replica_warms_up_prefixes_move_to_it_only(
    weights: list[float], keys: list[int], data: st.DataObject
) -> None:
    replicas, balance = replicas_of(*weights), affinity()
    warms = data.draw(st.sampled_from(replicas))
    homes = []
    for share in (COLD, 0.5, 1.0):
        warms.weight = warms.full_weight * share
        homes.append([balance.choose(replicas, (prefix,)) for prefix in keys])
    for before, then, last in zip(*homes, strict=True):
        assert then in {before, warms}
        assert last in {then, warms}


@pytest.mark.parametrize("share", [0.1, 5, 50])
def test_conversations_of_a_part_of_a_split_are_spread_over_all_of_its_replicas(share: float) -> None:
    """Both go by the same number, so that one could tell of the other."""
    split = Split({"stable": 100 - share, "canary": share}, lambda name, _: name, random.Random(1))
    replicas, balance, chance = replicas_of(1, 1, 1, 1), affinity(), random.Random(7)
    homes: Counter[Replica] = Counter()
    while homes.total() < 2000:
        prefix = (int(chance.getrandbits(64) * (share / 100)) + int((1 - share / 100) * 2**64),)
        if split.choose(prefix) == "canary":
            homes[balance.choose(replicas, prefix)] += 1
    assert [homes[replica] / 500 for replica in replicas] == [pytest.approx(1, rel=0.2)] * 4


@given(weights, prefixes, st.lists(st.integers(0, 40), min_size=8, max_size=8), st.integers(1, 30))
def test_what_others_have_at_a_replica_counts_towards_its_bound(
    weights: list[float], prefix: int, others: list[int], calls: int
) -> None:
    pool = pool_of(*weights)
    for replica, busy in zip(pool.replicas, others, strict=False):
        replica.told(EngineLoad(busy, 0))
    with ExitStack() as held:
        for _ in range(calls):
            chosen = held.enter_context(pool.lend(prefixes=(prefix,)))
            loads = {one: (one.in_flight + one.others) / one.weight for one in pool.replicas}
            all_calls = sum(one.in_flight + one.others for one in pool.replicas)
            within = chosen.in_flight + chosen.others < BOUND * all_calls * chosen.weight / sum(weights) + 1
            assert within or loads[chosen] - 1 / chosen.weight <= min(loads.values())


def test_prefixes_are_spread_by_weight() -> None:
    replicas, balance = replicas_of(1, 1, 2, 4), affinity()
    homes = Counter(balance.choose(replicas, prefix) for prefix in many(8000))
    assert [homes[replica] / 1000 for replica in replicas] == [pytest.approx(share, rel=0.1) for share in (1, 1, 2, 4)]


@given(weights, prefixes, st.integers(1, 80))
def test_a_hot_prefix_fills_no_replica_beyond_the_bound(weights: list[float], prefix: int, calls: int) -> None:
    pool = pool_of(*weights)
    with ExitStack() as held:
        for number in range(calls):
            before = [replica.in_flight for replica in pool.replicas]
            chosen = held.enter_context(pool.lend(prefixes=(prefix,)))
            share = (number + 1) * chosen.weight / sum(weights)
            least = min((replica.in_flight + (replica is not chosen)) / replica.weight for replica in pool.replicas)
            assert chosen.in_flight < BOUND * share + 1 or chosen.in_flight / chosen.weight == least, before


def test_a_prefix_comes_home_when_there_is_room_again() -> None:
    pool = pool_of(1, 1, 1, 1)
    home = lent(pool, 5)
    home.in_flight = 10
    assert lent(pool, 5) is not home
    home.in_flight = 0
    assert lent(pool, 5) is home


def test_where_the_short_prefix_is_hot_the_longer_one_decides() -> None:
    pool = pool_of(*[1.0] * 8)
    home, second = lent(pool, 5), lent(pool, 11)
    assert home is not second
    for replica in pool.replicas:
        replica.in_flight = 3
    second.in_flight = 2  # it has room, and another would be the least loaded
    pool.replicas[next(i for i, r in enumerate(pool.replicas) if r not in (home, second))].in_flight = 0
    assert lent(pool, 5, 11) is home
    home.in_flight = 9
    assert {lent(pool, 5, 11) for _ in range(20)} == {second}


@pytest.mark.parametrize("balance", ["least_requests", "round_robin", "prefix_affinity"])
def test_a_call_that_is_tried_again_goes_to_each_replica_once(balance: str) -> None:
    pool = pool_of(1, 1, 5, balance=balance)
    tried: list[Replica] = []
    for _ in pool.replicas:
        with pool.lend(tried=tried, prefixes=(5,)) as replica:
            tried.append(replica)
    assert set(tried) == set(pool.replicas)


def test_where_nobody_looked_at_the_prompt_the_least_loaded_is_chosen() -> None:
    busy, idle = replicas_of(1, 1)
    busy.in_flight = 1
    balance: Balance = affinity()
    assert balance.choose((busy, idle), ()) is idle
