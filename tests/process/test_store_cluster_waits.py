"""A cluster's master that is away, with nobody to take over: what waits for it waits, and nobody else's does."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import config
from gateway.admission.digest import digest
from gateway.admission.journal.journal import Journal
from gateway.admission.ledger.account import Account
from gateway.admission.redis.cluster import Cluster
from gateway.admission.redis.parts import of_settlement
from gateway.admission.redis.store import RedisStore
from gateway.admission.redis.two_steps import InTwoSteps
from gateway.admission.reservation import Reservation
from gateway.calls.usage import Usage
from tests.deadlines import PROMPTLY_S, STORE_TIMEOUT_S
from tests.journals import files, until
from tests.limiting import Remembering, limit, reservation
from tests.load import CLOCK
from tests.store_cluster import NODE_TIMEOUT_MS, PATIENT_MS, StoreCluster, ask

USED = Usage(2, 3)
EVERYBODYS = limit("month", 10**9, key="gw:{all}:shared")
ACCOUNTS = [Account(tenant, "k", "m", digest(tenant)) for tenant in [f"tenant-{number}" for number in range(9)]]


@pytest.fixture
def partial_cluster(store_cluster: StoreCluster) -> Iterator[StoreCluster]:
    """A cluster that soon misses a node, and goes on with the slots that it has."""
    store_cluster.configure("cluster-require-full-coverage", "no")
    store_cluster.configure("cluster-node-timeout", NODE_TIMEOUT_MS)
    yield store_cluster
    for node in store_cluster.masters:
        node.thaw()
    store_cluster.configure("cluster-require-full-coverage", "yes")
    store_cluster.wait_until_whole()
    store_cluster.configure("cluster-node-timeout", PATIENT_MS)


def monthly(account: Account) -> str:
    return f"gw:{{{account.tag}}}:month"


def call_of(account: Account, number: int) -> Reservation:
    return reservation(
        f"call-{number}", (limit("month", 10**9, key=monthly(account)), 9), (EVERYBODYS, 9), account=account
    )


@asynccontextmanager
async def gateway(cluster: StoreCluster, directory: Path | None) -> AsyncIterator[tuple[InTwoSteps, Remembering]]:
    observer = Remembering()
    steps = RedisStore(
        cluster.url,
        CLOCK,
        timeout_s=STORE_TIMEOUT_S,
        lease_s=30,
        retention_s=86_400,
        observer=observer,
        events=config.Events(stream="tenant"),
        backlog=None if directory is None else Journal(directory, CLOCK, dropped=observer.settlement_dropped),
    )
    store = InTwoSteps(steps)
    store.start()
    try:
        yield store, observer
    finally:
        await store.close()


def used(cluster: StoreCluster, key: str, owner: int) -> int:
    with cluster.masters[owner].client() as client:
        value = client.get(key)
    assert isinstance(value, bytes | None)
    return int(value.split()[0]) if value else 0


def told(cluster: StoreCluster, account: Account, owner: int) -> list[str]:
    """Return which calls of a tenant were booked, in order, as often as they were."""
    with cluster.masters[owner].client() as client:
        return [event[b"call"].decode() for _, event in client.xrange(f"gw:{{{account.tag}}}:events")]


@pytest.mark.parametrize("waits", ["in the journal", "in memory"])
async def test_what_waits_for_a_master_that_is_away_holds_up_nobody_and_is_charged_once_when_it_is_back(
    partial_cluster: StoreCluster, tmp_path: Path, waits: str
) -> None:
    cluster = partial_cluster
    owners = {account: cluster.owner_of(f"{{{account.tag}}}") for account in ACCOUNTS}
    away = cluster.owner_of("{all}")
    calls = [(ACCOUNTS[number % len(ACCOUNTS)], number) for number in range(900)]
    of = {account: [f"call-{number}" for whose, number in calls if whose is account] for account in ACCOUNTS}
    here = [account for account in ACCOUNTS if owners[account] != away]
    there = [account for account in ACCOUNTS if owners[account] == away]
    assert len({owners[account] for account in ACCOUNTS}) == 3
    settlements = [
        part
        for account, number in calls
        for part in of_settlement(call_of(account, number).settlement(USED, uncertain=True))
    ]

    def charged(accounts: Sequence[Account]) -> bool:
        return all(told(cluster, one, owners[one]) == of[one] for one in accounts)

    directory, killed = tmp_path / "journal", tmp_path / "killed"
    directory.mkdir()
    if waits == "in the journal":
        before = Journal(directory, CLOCK, dropped=Remembering().settlement_dropped)
        before.keep(settlements)
        await before.close()
    cluster.masters[away].freeze()
    if waits == "in the journal":  # the others have given it up, else it is found to be away by us first
        await until(lambda: b"cluster_slots_fail:0" not in ask(cluster.masters[away - 1], "CLUSTER", "INFO"))
    async with gateway(cluster, directory if waits == "in the journal" else None) as (store, observer):
        if waits == "in memory":
            masters = store._steps._lane
            assert isinstance(masters, Cluster)
            await until(lambda: masters.up and not masters.whole and None not in masters._owners)
            masters.keep(settlements)
        begun_s = CLOCK.monotonic()
        await until(lambda: charged(here))
        assert CLOCK.monotonic() - begun_s < STORE_TIMEOUT_S + PROMPTLY_S
        missing = sum(len(of[account]) for account in there) + len(calls)
        await until(lambda: store.pending == missing)
        if waits == "in the journal":
            assert len(files(directory)) == 2
            await asyncio.to_thread(shutil.copytree, directory, killed)  # what is left if it is killed here
        late = call_of(there[0], len(calls)), call_of(here[0], len(calls) + 1)
        for call in late:
            store.settle(call.settlement(USED, uncertain=True))
        of[there[0]].append(late[0].call_id)
        of[here[0]].append(late[1].call_id)
        await until(lambda: charged(here))
        cluster.masters[away].thaw()
        await until(lambda: not store.pending)
        assert charged(ACCOUNTS)
        assert observer.dropped == 0
    if waits == "in the journal":
        assert files(directory) == []
        async with gateway(cluster, killed) as (store, observer):
            await until(lambda: not store.pending)
        assert files(killed) == []
    assert charged(ACCOUNTS)
    assert [used(cluster, monthly(one), owners[one]) for one in ACCOUNTS] == [5 * len(of[one]) for one in ACCOUNTS]
    assert used(cluster, EVERYBODYS.key, away) == 5 * (len(calls) + 2)
