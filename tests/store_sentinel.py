"""A real master, its replica and three sentinels for tests and trials, on free ports, quick to notice a death."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from pathlib import Path

import pytest
import redis

from tests.store_cluster import ask, wait_until
from tests.store_server import StoreServer

MASTER = "limits"

# A master that is silent for so long is failed over, and a failover that is stuck for so long is tried anew.
_DOWN_AFTER_MS = 500
_FAILOVER_TIMEOUT_MS = 3000


class StoreSentinels:
    """`servers` are the master and its replicas, in no order once somebody failed over; `master` says which it is."""

    def __init__(self, directory: Path, *, replicas: int = 1, sentinels: int = 3) -> None:
        self._directory = directory
        self.servers = [
            StoreServer(directory, "--repl-diskless-sync-delay", "0", "--dbfilename", f"dump-{number}.rdb")
            for number in range(1 + replicas)
        ]
        self.sentinels = [
            StoreServer(directory, config=directory / f"sentinel-{number}.conf") for number in range(sentinels)
        ]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{MASTER}"

    @property
    def master(self) -> StoreServer:
        """The server that is the master in the eyes of the first sentinel that runs."""
        sentinel = next(sentinel for sentinel in self.sentinels if sentinel.running)
        _, port = ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return next(server for server in self.servers if server.port == int(port))

    def client(self) -> redis.Redis:
        """Return a client of the master."""
        return self.master.client()

    def start(self) -> None:
        """Start all, and wait until a failover could be had."""
        first, *others = self.servers
        first.start()
        for server in others:
            server.start()
            ask(server, "REPLICAOF", "127.0.0.1", first.port)
        for sentinel in self.sentinels:
            self._configure(sentinel)
            sentinel.start()
        wait_until(lambda: all(follows(server) for server in others))
        wait_until(lambda: all(self._sees_all(sentinel) for sentinel in self.sentinels))

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.stop()

    def fail_over(self) -> None:
        """Have the sentinels make a replica the master, as an operator does before an upgrade."""
        before = self.master
        ask(self.sentinels[0], "SENTINEL", "FAILOVER", MASTER)
        self.wait_until_taken_over(before)

    def kill_master(self) -> StoreServer:
        """Kill the master as a power failure does; the sentinels make a replica the master in a second or two."""
        master = self.master
        master.stop()
        return master

    def wait_until_taken_over(self, before: StoreServer) -> None:
        """Wait until all sentinels name another master than `before`, and it is one."""
        wait_until(
            lambda: all(
                int(ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1]) != before.port
                for sentinel in self.sentinels
                if sentinel.running
            )
        )
        wait_until(lambda: bool(ask(self.master, "ROLE")[0] == b"master"))

    def _configure(self, sentinel: StoreServer) -> None:
        """Write what sentinels would take seconds to tell each other: who the others are, and the replicas."""
        first, *replicas = self.servers
        lines = [
            f"sentinel myid {_id(sentinel)}",
            f"sentinel monitor {MASTER} 127.0.0.1 {first.port} {len(self.sentinels) // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {MASTER} {_FAILOVER_TIMEOUT_MS}",
        ]
        lines += [f"sentinel known-replica {MASTER} 127.0.0.1 {replica.port}" for replica in replicas]
        others = [other for other in self.sentinels if other is not sentinel]
        lines += [f"sentinel known-sentinel {MASTER} 127.0.0.1 {other.port} {_id(other)}" for other in others]
        assert sentinel.config is not None
        sentinel.config.write_text("\n".join(lines) + "\n")

    def _sees_all(self, sentinel: StoreServer) -> bool:
        seen = ask(sentinel, "SENTINEL", "MASTER", MASTER)
        others = str(len(self.sentinels) - 1), str(len(self.servers) - 1)
        if (seen[b"num-other-sentinels"].decode(), seen[b"num-slaves"].decode()) != others:
            return False
        replicas = ask(sentinel, "SENTINEL", "REPLICAS", MASTER)
        return (
            seen[b"flags"] == b"master"
            and all(one[b"master-link-status"] == b"ok" for one in replicas)
            and b"OK" in ask(sentinel, "SENTINEL", "CKQUORUM", MASTER)
        )


def _id(sentinel: StoreServer) -> str:
    return sha1(str(sentinel.port).encode(), usedforsecurity=False).hexdigest()


def follows(server: StoreServer) -> bool:
    with server.client() as client:
        return str(client.info("replication")["master_link_status"]) == "up"


@contextmanager
def running_sentinels(*, replicas: int = 1, sentinels: int = 3) -> Iterator[StoreSentinels]:
    with tempfile.TemporaryDirectory() as directory:
        topology = StoreSentinels(Path(directory), replicas=replicas, sentinels=sentinels)
        try:
            topology.start()
            yield topology
        finally:
            topology.stop()


@pytest.fixture(scope="session")
def shared_store_sentinels() -> Iterator[StoreSentinels]:
    """A master without replicas and one sentinel, for tests that leave them running."""
    with running_sentinels(replicas=0, sentinels=1) as sentinels:
        yield sentinels


@pytest.fixture
def store_sentinels(shared_store_sentinels: StoreSentinels) -> StoreSentinels:
    """The same without keys."""
    shared_store_sentinels.master.flush()
    return shared_store_sentinels


@pytest.fixture
def own_store_sentinels() -> Iterator[StoreSentinels]:
    """Sentinels of the test's own, with a replica, to fail over."""
    with running_sentinels() as sentinels:
        yield sentinels
