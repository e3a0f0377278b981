"""Pools whose replicas come, go and come back while calls are under way."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import SystemClock
from gateway.config import PoolEntry, ReplicaEntry
from gateway.errors import NoReplicaAvailable
from gateway.routing.orders.orders import NONE, Orders
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools
from gateway.routing.replica import Replica

URLS = tuple(f"http://10.0.0.{number}:8000" for number in range(5))


def entry_of(*urls: str, **more: object) -> PoolEntry:
    return PoolEntry.model_validate({"replicas": urls or URLS[:1], **more})


def pools_of(**entries: PoolEntry) -> Pools:
    return Pools(entries, random.Random(1), SystemClock())


def urls(pool: Pool) -> list[str]:
    return [replica.url for replica in pool.replicas]


def entries(*urls: str) -> tuple[ReplicaEntry, ...]:
    return tuple(ReplicaEntry(url=url) for url in urls)


def test_a_replica_that_stays_keeps_what_is_known_of_it_and_takes_on_what_is_configured_anew() -> None:
    pools = pools_of(p=entry_of(*URLS[:2], api_key="old"))
    stays, goes = pools["p"].replicas
    stays.up, stays.in_flight, goes.in_flight = False, 3, 1
    assert stays.breaker.trip(0.0)
    pools.configure({"p": entry_of(URLS[2], URLS[0], api_key="new", balance="round_robin", attempts=7)})
    comes, same = pools["p"].replicas
    assert (same, same.up, same.in_flight, same.breaker.open) == (stays, False, 3, True)
    assert {replica.authorization for replica in pools["p"].replicas} == {"Bearer new"}
    assert (comes.url, comes.gone, goes.gone, pools["p"].attempts) == (URLS[2], False, True, 7)
    assert [replica for _, replica in pools.replicas] == [comes, stays, goes]
    goes.in_flight = 0
    assert [replica for _, replica in pools.replicas] == [comes, stays]


def test_who_comes_to_others_that_serve_has_to_show_first_that_it_is_up() -> None:
    pool = pools_of(p=entry_of(URLS[0]))["p"]
    assert pool.replicas[0].up
    pool.list(entries(*URLS[:2]))
    assert [replica.up for replica in pool.replicas] == [True, False]
    pool.replicas[0].up = False
    pool.list(entries(*URLS[:3]))
    assert [replica.up for replica in pool.replicas] == [False, False, True]


def test_who_takes_the_place_of_all_others_gets_their_calls_at_once() -> None:
    pool = pools_of(p=entry_of(*URLS[:2]))["p"]
    pool.list(entries(URLS[2]))
    assert pool.lend().__enter__().url == URLS[2]


def test_who_leaves_and_comes_back_while_it_has_calls_is_the_same() -> None:
    pool = pools_of(p=entry_of(*URLS[:2]))["p"]
    with pool.lend() as replica:
        pool.list(())
        with pytest.raises(NoReplicaAvailable):
            pool.lend()
        assert (replica.gone, replica.in_flight) == (True, 1)
        pool.list(entries(*URLS[:2]))
        assert replica in pool.replicas
        assert not replica.gone
    assert sum(replica.in_flight for replica in pool.replicas) == 0
    assert not pool.leaving


@pytest.mark.parametrize("how", ["fault", "full"])
def test_who_comes_back_with_an_open_breaker_or_at_rest_gets_no_calls(how: str) -> None:
    pool = pools_of(p=entry_of(*URLS[:2], balance="round_robin", breaker={"failures": 1}))["p"]
    loans = {loan.__enter__().url: loan for loan in (pool.lend() for _ in range(4))}
    loan = loans[URLS[0]]
    if how == "fault":
        loan.fault("test")
    else:
        loan.full(60.0)
    pool.list(entries(URLS[1]))
    pool.list(entries(*URLS[:2]))
    assert {pool.lend().__enter__().url for _ in range(4)} == {URLS[1]}


def test_a_fault_of_who_has_left_holds_nobody_back() -> None:
    pool = pools_of(p=entry_of(*URLS[:2], balance="round_robin", breaker={"failures": 1}))["p"]
    loans = {loan.__enter__().url: loan for loan in (pool.lend() for _ in range(4))}
    pool.list(entries(URLS[1]))
    loans[URLS[0]].fault("test")
    assert pool.lend().__enter__().url == URLS[1]
    assert not pool.held_back


def test_who_comes_back_goes_on_to_warm_up() -> None:
    pool = pools_of(p=entry_of(*URLS[:2], slow_start="60s"))["p"]
    warms = pool.replicas[0]
    warms.in_flight = 1
    pool.warm_up(warms)
    pool.list(entries(URLS[1]))
    pool.list(entries(*URLS[:2]))
    assert warms in pool.replicas
    assert warms.weight < warms.full_weight


def test_a_drained_replica_gets_no_calls_until_it_is_not_drained_any_more() -> None:
    pool = pools_of(p=entry_of(*URLS[:2]))["p"]
    pool.order(Orders(drained=frozenset(URLS[:1])))
    assert {pool.lend().__enter__().url for _ in range(20)} == {URLS[1]}
    assert not pool.has_another(tried=[pool.replicas[1]])
    pool.order(Orders(drained=frozenset(URLS[:2])))
    with pytest.raises(NoReplicaAvailable):
        pool.lend()
    pool.order(NONE)
    assert {pool.lend().__enter__().url for _ in range(40)} == set(URLS[:2])


def test_a_drained_replica_does_not_count_where_all_breakers_are_open() -> None:
    pool = pools_of(p=entry_of(*URLS[:2]))["p"]
    pool.order(Orders(drained=frozenset(URLS[:1])))
    ill = pool.replicas[1]
    assert ill.breaker.trip(pool.now())
    pool.opened(ill, "test")
    assert pool.lend().__enter__() is ill


def test_orders_hold_over_what_is_listed_and_survive_it() -> None:
    pool = pools_of(p=entry_of(*URLS[:2]))["p"]
    pool.order(Orders(added=entries(URLS[2]), removed=frozenset(URLS[:1])))
    assert urls(pool) == [URLS[1], URLS[2]]
    pool.list(entries(URLS[0], URLS[3]))
    assert urls(pool) == [URLS[3], URLS[2]]
    pool.order(NONE)
    assert urls(pool) == [URLS[0], URLS[3]]


def test_followers_are_told_of_every_pool_and_every_change() -> None:
    pools = pools_of(p=entry_of(), q=entry_of(URLS[1]))
    told: list[tuple[str, list[str]]] = []
    pools.follow(lambda pool: told.append((pool.name, urls(pool))))
    assert told == [("p", [URLS[0]]), ("q", [URLS[1]])]
    told.clear()
    left = pools["p"]
    pools.configure({"q": entry_of(URLS[2]), "r": entry_of(URLS[3])})
    assert sorted(told) == [("p", [URLS[0]]), ("q", [URLS[2]]), ("r", [URLS[3]])]
    assert list(pools) == ["q", "r"]
    assert [replica.gone for _, replica in pools.replicas] == [False, False]
    with left.lend() as replica:  # a call that had come before
        assert replica.gone


@given(st.lists(st.tuples(st.sets(st.sampled_from(URLS)), st.integers(0, 4)), max_size=30))
def test_calls_under_way_are_counted_to_the_end_whoever_comes_and_goes(steps: list[tuple[set[str], int]]) -> None:
    pool = pools_of(p=entry_of(*URLS))["p"]
    loans = []
    for listed, ended in steps:
        pool.list(entries(*sorted(listed)))
        for replica in pool.replicas:
            replica.up = True
        if listed:
            loan = pool.lend()
            loans.append((loan, loan.__enter__()))
        for loan, _ in loans[:ended]:
            loan.__exit__()
        del loans[:ended]
        there: list[Replica] = [*pool.replicas, *pool.leaving]
        assert len({replica.url for replica in there}) == len(there)
        assert sum(replica.in_flight for replica in there) == len(loans)
        assert {replica for _, replica in loans} <= set(there)


def test_an_order_changes_of_a_listed_replica_only_what_it_says() -> None:
    listed = {"url": "https://10.0.0.9:8000", "server_name": "engine.example", "max_in_flight": 3, "weight": 5}
    pool = pools_of(p=PoolEntry.model_validate({"replicas": [listed]}))["p"]
    pool.order(Orders(added=(ReplicaEntry.model_validate({"url": "https://10.0.0.9:8000", "weight": 2}),)))
    (replica,) = pool.replicas
    assert (replica.server_name, replica.most, replica.full_weight) == ("engine.example", 3, 2)


@pytest.mark.parametrize("other", ["http://h:80", "http://h/", "http://h:80/"])
def test_one_address_stands_in_a_pool_once_however_it_is_written(other: str) -> None:
    with pytest.raises(ValueError, match="stands here twice"):
        PoolEntry.model_validate({"replicas": ["http://h", other]})
