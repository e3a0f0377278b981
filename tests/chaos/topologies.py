"""The stores that gateways share, as a run sees them: an URL, what can befall them, and all that they hold."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import redis

from tests.store_cluster import StoreCluster, ask, running_cluster, wait_until
from tests.store_sentinel import MASTER, StoreSentinels, running_sentinels
from tests.store_server import StoreServer, running_server

# What is acknowledged is on disk: a server that is killed loses nothing that a gateway saw an answer to.
LASTING = ("--appendonly", "yes", "--appendfsync", "always")

Fault = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class StoreKey:
    """A key of the store. `size` is how many hold a slot; `value` what a string holds, `entries` what a stream."""

    name: str
    kind: str
    ttl_ms: int
    size: int = 0
    value: str = ""
    entries: tuple[Mapping[str, str], ...] = ()


class Topology(Protocol):
    """One store. `faults` are by name; each takes for how long, and has ended when the store is whole again.

    Those whose names begin with `master` may lose what was acknowledged last. `two_steps`: what is everybody's is taken
    in a step of its own.
    """

    two_steps: bool

    @property
    def url(self) -> str: ...

    @property
    def faults(self) -> Mapping[str, Fault]: ...

    def keys(self) -> list[StoreKey]:
        """Return everything in it."""


class Standalone:
    """One server."""

    two_steps = False

    def __init__(self, server: StoreServer) -> None:
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {"store killed": self._kill, "store frozen": self._freeze}

    def keys(self) -> list[StoreKey]:
        with self._server.client() as client:
            return list(keys_of(client))

    async def _kill(self, for_s: float) -> None:
        self._server.stop()
        await asyncio.sleep(for_s)
        await asyncio.to_thread(self._server.start)

    async def _freeze(self, for_s: float) -> None:
        self._server.freeze()
        try:
            await asyncio.sleep(for_s)
        finally:
            self._server.thaw()


@contextmanager
def standalone() -> Iterator[Topology]:
    with running_server(*LASTING) as server:
        yield Standalone(server)


class Sentinel:
    """A master, its replica and three sentinels."""

    two_steps = False

    def __init__(self, sentinels: StoreSentinels) -> None:
        self._sentinels = sentinels

    @property
    def url(self) -> str:
        return self._sentinels.url

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {
            "master killed": self._kill,
            "master frozen": self._freeze,
            "master failed over": self._fail_over,
            "sentinel killed": self._kill_sentinel,
        }

    def keys(self) -> list[StoreKey]:
        with self._sentinels.master.client() as client:
            return list(keys_of(client))

    async def _kill(self, for_s: float) -> None:
        """Kill the master for good enough: without its data it must not return before another is the master."""
        killed = await asyncio.to_thread(self._sentinels.kill_master)
        await asyncio.to_thread(self._sentinels.wait_until_taken_over, killed)
        await asyncio.sleep(for_s)
        await asyncio.to_thread(killed.start)
        # Sentinels would see to that too, but in ten seconds.
        master = await asyncio.to_thread(lambda: self._sentinels.master)
        await asyncio.to_thread(ask, killed, "REPLICAOF", "127.0.0.1", master.port)
        await asyncio.to_thread(wait_until, self._whole)

    async def _freeze(self, for_s: float) -> None:
        master = await asyncio.to_thread(lambda: self._sentinels.master)
        master.freeze()
        try:
            await asyncio.sleep(for_s)
        finally:
            master.thaw()
        await asyncio.to_thread(wait_until, self._whole)

    async def _fail_over(self, _: float) -> None:
        await asyncio.to_thread(self._sentinels.fail_over)
        await asyncio.to_thread(wait_until, self._whole)

    async def _kill_sentinel(self, for_s: float) -> None:
        sentinel = self._sentinels.sentinels[-1]
        sentinel.stop()
        await asyncio.sleep(for_s)
        await asyncio.to_thread(sentinel.start)

    def _whole(self) -> bool:
        """Whether there is one master, by the word of all sentinels, and a replica that has all it has.

        Where a sentinel still thinks it down, or is about to fail over, another may be the master a second later.
        """
        told = [ask(one, "SENTINEL", "MASTER", MASTER) for one in self._sentinels.sentinels]
        role = ask(self._sentinels.master, "ROLE")
        followed = role[0] == b"master" and len(role[2]) == len(self._sentinels.servers) - 1
        calm = len({one[b"port"] for one in told}) == 1 and all(one[b"flags"] == b"master" for one in told)
        return calm and followed and all(int(offset) > 0 for _, _, offset in role[2])


@contextmanager
def sentinel() -> Iterator[Topology]:
    with running_sentinels() as sentinels:
        yield Sentinel(sentinels)


class Cluster:
    """Three masters with a replica each."""

    two_steps = True

    def __init__(self, nodes: StoreCluster, chance: Random) -> None:
        self._nodes = nodes
        self._chance = chance

    @property
    def url(self) -> str:
        return self._nodes.url

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {
            "master killed": self._kill,
            "master frozen": self._freeze,
            "master failed over": self._fail_over,
            "replica killed": self._kill_replica,
        }

    def keys(self) -> list[StoreKey]:
        found: list[StoreKey] = []
        for node in self._nodes.masters:
            with node.client() as client:
                found += keys_of(client)
        return found

    async def _kill(self, for_s: float) -> None:
        """Kill a master: without its data it must not return before its replica has taken over."""
        number = self._one()
        self._nodes.kill_master(number)
        await asyncio.to_thread(self._nodes.wait_until_taken_over, number)
        await asyncio.sleep(for_s)
        await asyncio.to_thread(self._nodes.replicas[number].start)
        await asyncio.to_thread(self._nodes.wait_until_whole)

    async def _freeze(self, for_s: float) -> None:
        number = self._one()
        master, replica = self._nodes.masters[number], self._nodes.replicas[number]
        master.freeze()
        try:
            await asyncio.sleep(for_s)
        finally:
            master.thaw()
        await asyncio.to_thread(self._nodes.wait_until_whole)
        if (await asyncio.to_thread(ask, replica, "ROLE"))[0] == b"master":
            self._nodes.masters[number], self._nodes.replicas[number] = replica, master

    async def _fail_over(self, _: float) -> None:
        await asyncio.to_thread(self._nodes.fail_over, self._one())
        await asyncio.to_thread(self._nodes.wait_until_whole)

    async def _kill_replica(self, for_s: float) -> None:
        replica = self._nodes.replicas[self._one()]
        replica.stop()
        await asyncio.sleep(for_s)
        await asyncio.to_thread(replica.start)
        await asyncio.to_thread(self._nodes.wait_until_whole)

    def _one(self) -> int:
        return self._chance.randrange(len(self._nodes.masters))


@contextmanager
def cluster() -> Iterator[Topology]:
    with running_cluster() as nodes:
        yield Cluster(nodes, Random(len(nodes.nodes)))


TOPOLOGIES: dict[str, Callable[[], AbstractContextManager[Topology]]] = {
    "standalone": standalone,
    "sentinel": sentinel,
    "cluster": cluster,
}


def keys_of(client: redis.Redis) -> Iterator[StoreKey]:
    """Yield everything that one server holds."""
    for raw in client.scan_iter("*", count=1000):
        name, kind, ttl_ms = raw.decode(), client.type(raw).decode(), int(client.pttl(raw))  # type: ignore[union-attr]
        if kind == "zset":
            yield StoreKey(name, kind, ttl_ms, size=int(client.zcard(raw)))
        elif kind == "string":
            yield StoreKey(name, kind, ttl_ms, value=(client.get(raw) or b"").decode())  # type: ignore[union-attr]
        elif kind == "stream":
            yield StoreKey(name, kind, ttl_ms, entries=tuple(_entries(client, raw)))
        elif ttl_ms != -2:  # which is gone meanwhile
            yield StoreKey(name, kind, ttl_ms)


def _entries(client: redis.Redis, stream: bytes) -> Iterator[Mapping[str, str]]:
    found: Any = client.xrange(stream)
    for _, fields in found:
        yield {name.decode(): value.decode() for name, value in fields.items()}
