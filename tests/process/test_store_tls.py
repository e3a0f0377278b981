"""TLS to a store of many servers: to the sentinels and the master that they name, and to every node of a cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.admission.digest import digest
from gateway.admission.ledger.account import Account
from gateway.admission.redis.store import RedisStore
from gateway.admission.reservation import Reservation
from gateway.admission.store import StoreUnavailable
from tests.certificates import certified
from tests.deadlines import STORE_TIMEOUT_S
from tests.limiting import RETENTION_S, Remembering, limit, reservation, until_asked
from tests.load import CLOCK
from tests.store_cluster import NODE_TIMEOUT_MS, StoreCluster, ask, running_cluster, wait_until
from tests.store_sentinel import MASTER, running_sentinels
from tests.store_server import StoreServer
from tests.store_tls import either_way_before

TENANTS = [f"tenant-{number}" for number in range(20)]


@asynccontextmanager
async def connected(url: str, *, there: bool = True) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        url, CLOCK, timeout_s=STORE_TIMEOUT_S, lease_s=30, retention_s=RETENTION_S, observer=Remembering()
    )
    store.start()
    try:
        if there:
            await until_asked(lambda: store.renew([reservation("nobody")]))
        yield store
    finally:
        await store.close()


async def counts(store: RedisStore) -> None:
    """Check that it counts: of two calls where one is allowed, the second is refused."""
    for tenant in TENANTS:
        call = call_of(tenant, "call")
        assert (await store.reserve(call)).admitted
        assert not (await store.reserve(call_of(tenant, "again"))).admitted
        store.settle(call.settlement(None))


def call_of(tenant: str, name: str) -> Reservation:
    """Return a call of a tenant that is allowed one a day."""
    only = limit("day", 1, key=f"gw:{{{digest(tenant)}}}:only")
    return reservation(f"{name}-{tenant}", (only, 1), account=Account(tenant, "key", "model", digest(tenant)))


async def test_sentinels_and_the_master_that_they_name_are_spoken_to_in_tls(tmp_path: Path) -> None:
    tls, authority = certified(tmp_path)
    with running_sentinels(replicas=0, sentinels=1) as topology:
        (sentinel,), (server,) = topology.sentinels, topology.servers
        async with either_way_before(sentinel.port, tls) as asked, either_way_before(server.port, tls) as master:
            await asyncio.to_thread(_monitor, sentinel, master.port)
            where = f"{asked.port}/{MASTER}?ssl_ca_certs={authority}"
            async with connected(f"rediss+sentinel://127.0.0.1:{where}") as store:
                await counts(store)
            assert asked.plain == 0
            assert min(asked.encrypted, master.encrypted) >= 1
            before = master.encrypted
            async with connected(f"rediss+sentinel://localhost:{where}", there=False) as store:
                with pytest.raises(StoreUnavailable):
                    await store.reserve(call_of("tenant", "refused"))
            assert master.encrypted == before  # whom nobody vouches for is not believed who the master is


def _monitor(sentinel: StoreServer, port: int) -> None:
    """Have a sentinel know the master at another port."""
    ask(sentinel, "SENTINEL", "REMOVE", MASTER)
    ask(sentinel, "SENTINEL", "MONITOR", MASTER, "127.0.0.1", port, 1)
    wait_until(lambda: bool(ask(sentinel, "SENTINEL", "MASTER", MASTER)[b"flags"] == b"master"))


async def test_every_node_of_a_cluster_is_spoken_to_in_tls(tmp_path: Path) -> None:
    tls, authority = certified(tmp_path)
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(running_cluster(replicas=False))
        doors = [await stack.enter_async_context(either_way_before(node.port, tls)) for node in cluster.nodes]
        await asyncio.to_thread(_announce, cluster, [door.port for door in doors])
        options = f"ssl_ca_certs={authority}"
        async with connected(f"rediss+cluster://127.0.0.1:{doors[0].port}?{options}") as store:
            await counts(store)
        assert [door.plain for door in doors] == [0, 0, 0]
        assert min(door.encrypted for door in doors) >= 1
        async with connected(f"rediss+cluster://localhost:{doors[0].port}?{options}", there=False) as store:
            with pytest.raises(StoreUnavailable):
                await store.reserve(call_of("tenant", "refused"))


def _announce(cluster: StoreCluster, ports: list[int]) -> None:
    """Have all nodes name each other by other ports."""
    cluster.configure("cluster-node-timeout", NODE_TIMEOUT_MS)  # they tell each other as often
    for node, port in zip(cluster.nodes, ports, strict=True):
        ask(node, "CONFIG", "SET", "cluster-announce-port", port)
    wait_until(lambda: all(_announced(node) == set(ports) for node in cluster.nodes))


def _announced(node: StoreServer) -> set[int]:
    return {int(port) for _, _, (_, port, *_), *_ in ask(node, "CLUSTER", "SLOTS")}
