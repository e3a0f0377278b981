"""A real Redis Cluster for tests and trials: masters with a replica each, on free ports, quick to notice a death."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.ports import free_port
from tests.store_server import StoreServer

SLOTS = 16384
# Half a minute of looks, and however long nodes take to answer them.
_LOOK_EVERY_S, _LOOKS = 0.02, 1500

# A node that is silent for so long is failed over; a master that hears no majority for so long stops to serve. Where
# nobody is to take over, and until all know each other, nodes wait for longer than a busy machine can stand still.
NODE_TIMEOUT_MS, PATIENT_MS = 600, 15_000


class StoreCluster:
    """`masters[i]` has the i-th part of the slots and is followed by `replicas[i]`, as long as nobody fails over."""

    def __init__(self, directory: Path, *, masters: int = 3, replicas: bool = True) -> None:
        self._directory = directory
        self.masters = [self._node(number) for number in range(masters)]
        self.replicas = [self._node(masters + number) for number in range(masters if replicas else 0)]

    @property
    def nodes(self) -> list[StoreServer]:
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.masters)}"

    def start(self) -> None:
        """Start all nodes, make them one, and wait until all of them serve."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        bounds = [SLOTS * number // len(self.masters) for number in range(len(self.masters) + 1)]
        for node, (start, end) in zip(self.masters, pairwise(bounds), strict=True):
            ask(node, "CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        for node in self.nodes[1:]:
            ask(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        wait_until(lambda: all(self._knows_all(node) for node in self.nodes))
        for master, replica in zip(self.masters, self.replicas, strict=bool(self.replicas)):
            ask(replica, "CLUSTER", "REPLICATE", self.id_of(master))
        self.wait_until_whole()
        if self.replicas:
            self.configure("cluster-node-timeout", NODE_TIMEOUT_MS)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def configure(self, name: str, value: str | int) -> None:
        """Have all nodes know an option by this value."""
        for node in self.nodes:
            ask(node, "CONFIG", "SET", name, value)

    def wait_until_whole(self) -> None:
        """Wait until every slot has a master, in every node's eyes, and every replica follows one."""
        wait_until(lambda: all(_serves(node) and _follows(node) for node in self.nodes if node.running))

    def wait_until_served(self) -> None:
        """Wait until every slot has a master in the eyes of every node that runs; replicas may be away."""
        wait_until(lambda: all(_serves(node) for node in self.nodes if node.running))

    def fail_over(self, number: int) -> None:
        """Have a master's replica take over, as an operator does before an upgrade: no write is lost."""
        ask(self.replicas[number], "CLUSTER", "FAILOVER")
        wait_until(lambda: _role(self.replicas[number]) == "master")
        self.masters[number], self.replicas[number] = self.replicas[number], self.masters[number]

    def kill_master(self, number: int) -> None:
        """Kill a master as a power failure does; its replica takes over by itself, in a second or two."""
        self.masters[number].stop()

    def wait_until_taken_over(self, number: int) -> None:
        """Wait until the replica of a killed or frozen master is the master, and all that answer know it."""
        wait_until(lambda: _role(self.replicas[number]) == "master")
        self.masters[number], self.replicas[number] = self.replicas[number], self.masters[number]
        others = [node for node in self.nodes if node.running and node is not self.replicas[number]]
        wait_until(lambda: all(_serves(node) for node in others))

    def owner_of(self, key: str) -> int:
        """Return the number of the master that has `key`, as it was in the beginning and through failovers."""
        return key_slot(key.encode()) * len(self.masters) // SLOTS

    def move_slot(self, slot: int, *, source: int, target: int) -> None:
        """Move a slot key by key, as tools reshard."""
        self.begin_move(slot, source=source, target=target)
        while keys := ask(self.masters[source], "CLUSTER", "GETKEYSINSLOT", slot, 10):
            self.move_keys(*keys, source=source, target=target)
        self.end_move(slot, source=source, target=target)

    def begin_move(self, slot: int, *, source: int, target: int) -> None:
        """From now on keys that are not at the source are at the target."""
        there, here = self.masters[target], self.masters[source]
        ask(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(here))
        ask(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(there))

    def move_keys(self, *keys: str | bytes, source: int, target: int) -> None:
        """Move some keys of a slot that is being moved."""
        ask(
            self.masters[source],
            "MIGRATE",
            "127.0.0.1",
            self.masters[target].port,
            "",
            0,
            5000,
            "KEYS",
            *map(_text, keys),
        )

    def end_move(self, slot: int, *, source: int, target: int) -> None:
        """All keys are at the target, which has the slot from now on."""
        there = self.id_of(self.masters[target])
        for node in (self.masters[target], self.masters[source], *self.masters):
            ask(node, "CLUSTER", "SETSLOT", slot, "NODE", there)

    def keys(self, pattern: str = "*") -> list[str]:
        """Return all keys of all masters that run."""
        keys: list[str] = []
        for node in self.masters:
            with node.client() as client:
                keys += [key.decode() for key in client.scan_iter(pattern)]
        return sorted(keys)

    def booked(self, day: str) -> dict[str, int]:
        """Return what one day of one tenant's ledger holds of each counter, of all keys and models."""
        figures: dict[str, int] = {}
        with self.client() as client:
            for field, figure in client.hgetall(day).items():
                if field != b"tenant":
                    counter = _text(field).split()[0]
                    figures[counter] = figures.get(counter, 0) + int(figure)
        return figures

    @contextmanager
    def client(self) -> Iterator[redis.RedisCluster]:
        """Yield a client of all of it."""
        node = next(node for node in self.nodes if node.running)
        with redis.RedisCluster(host="127.0.0.1", port=node.port) as client:
            yield client
            for one in client.get_nodes():  # which it leaves connected
                one.redis_connection.connection_pool.disconnect()

    def flush(self) -> None:
        """Forget all keys."""
        for node in self.masters:
            node.flush()

    def id_of(self, node: StoreServer) -> str:
        return _text(ask(node, "CLUSTER", "MYID"))

    def _node(self, number: int) -> StoreServer:
        bus_port = free_port()  # by default 10000 above the node's own, which may be none
        options = {
            "--cluster-enabled": "yes",
            "--cluster-port": str(bus_port),
            "--cluster-config-file": f"nodes-{number}.conf",
            "--cluster-node-timeout": str(PATIENT_MS),
            "--cluster-replica-validity-factor": "0",
            "--cluster-migration-barrier": "99",
            "--repl-diskless-sync-delay": "0",
            "--dbfilename": f"dump-{number}.rdb",
        }
        node = StoreServer(self._directory, *[word for option in options.items() for word in option])
        node.bus_port = bus_port
        return node

    def _knows_all(self, node: StoreServer) -> bool:
        info = _text(ask(node, "CLUSTER", "INFO"))
        return f"cluster_known_nodes:{len(self.nodes)}\r" in info


def ask(node: StoreServer, *words: str | int) -> Any:
    """Return what one node says to one command."""
    with node.client(socket_timeout=10, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)) as client:
        return client.execute_command(*words)


def wait_until(condition: Callable[[], bool]) -> None:
    """Ask until the condition holds; a node that does not answer yet is no reason to stop.

    Raises:
        redis.RedisError: it did not come to that in `_LOOKS` looks, or a node did not answer at the last.
    """

    def look() -> None:
        if not condition():
            raise redis.RedisError("it did not come to that in time")

    # Nodes and sentinels tell nobody when they agree: each has to be asked.
    again = redis.retry.Retry(redis.backoff.ConstantBackoff(_LOOK_EVERY_S), _LOOKS, (redis.RedisError,))
    again.call_with_retry(look, lambda _: None)


def _serves(node: StoreServer) -> bool:
    info = _text(ask(node, "CLUSTER", "INFO"))
    return "cluster_state:ok" in info and f"cluster_slots_ok:{SLOTS}" in info


def _follows(node: StoreServer) -> bool:
    with node.client() as client:
        info = client.info("replication")
    return str(info.get("master_link_status", "up")) == "up"  # a master has none


def _role(node: StoreServer) -> str:
    with node.client() as client:
        return str(client.info("replication")["role"])


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


@contextmanager
def running_cluster(*, masters: int = 3, replicas: bool = True) -> Iterator[StoreCluster]:
    with tempfile.TemporaryDirectory() as directory:
        cluster = StoreCluster(Path(directory), masters=masters, replicas=replicas)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def shared_store_cluster() -> Iterator[StoreCluster]:
    """Three masters without replicas, for tests that leave them running."""
    with running_cluster(replicas=False) as cluster:
        yield cluster


@pytest.fixture
def store_cluster(shared_store_cluster: StoreCluster) -> StoreCluster:
    """The same without keys."""
    shared_store_cluster.flush()
    return shared_store_cluster


@pytest.fixture
def own_store_cluster() -> Iterator[StoreCluster]:
    """A cluster of the test's own, with replicas, to fail over."""
    with running_cluster() as cluster:
        yield cluster
