"""Masters that come and go: nothing that was given to them is lost, and each tenant's calls stay in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.admission.redis.cluster import Cluster
from gateway.admission.redis.lane import LATE_BATCH
from gateway.admission.redis.slots import SLOTS
from gateway.admission.redis.store import RedisStore
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from tests.journals import until
from tests.limiting import Remembering, limit, reservation


class Node:
    """One node of a cluster whose slots one has; it takes all commands. What it is told to settle may have to wait."""

    port = 0
    hangs_up = 0  # so many times, when it is told to settle

    def __init__(self) -> None:
        self.master: Node = self
        self.epoch = 1
        self.settled: list[bytes] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                if self.hangs_up and words[0] == b"EVALSHA" and b":call:" in words[3]:
                    self.hangs_up -= 1
                    return
                writer.write(await self._reply(words))
        finally:
            writer.close()

    async def _reply(self, words: list[bytes]) -> bytes:
        match words:
            case [b"CLUSTER", b"SLOTS"]:
                return b"*1\r\n*3\r\n:0\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % (SLOTS - 1, self.master.port)
            case [b"CLUSTER", b"INFO"]:
                return _bulk(b"cluster_state:ok\r\ncluster_current_epoch:%d\r\n" % self.epoch)
            case [b"INFO", _]:
                return _bulk(b"role:master\r\nmaster_replid:%d\r\n" % self.port)
            case [b"EVALSHA", _, _, record, *_] if b":call:" in record:
                self.settled.append(record)
                await self.answers.wait()
                return b":1\r\n"
        return b":0\r\n"


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


@asynccontextmanager
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    pair = Node(), Node()
    servers = [await asyncio.start_server(node.serve, "127.0.0.1", 0) for node in pair]
    for node, server in zip(pair, servers, strict=True):
        node.port = server.sockets[0].getsockname()[1]
        node.master = pair[0]
    try:
        yield pair
    finally:
        for server in servers:
            server.close()


async def test_what_a_master_takes_while_its_lane_is_let_go_is_told_to_the_next() -> None:
    async with nodes() as (old, new):
        url = f"redis+cluster://127.0.0.1:{old.port},127.0.0.1:{new.port}"
        store = RedisStore(url, SystemClock(), timeout_s=5, lease_s=30, retention_s=86_400, observer=Remembering())
        store.start()
        cluster = store._lane
        assert isinstance(cluster, Cluster)
        try:
            await until(lambda: cluster.whole)
            call = reservation("call", (limit("day", 100), 9))
            old.answers.clear()
            store.settle(call.settlement(Usage(1, 1), charging=True))
            await until(lambda: old.settled == [call.record.encode()])
            for node in (old, new):
                node.master, node.epoch = new, 2
            cluster.doubt()
            await until(lambda: cluster._leaving)
            assert new.settled == []
            old.answers.set()
            await until(lambda: new.settled == [call.record.encode()])
        finally:
            await store.close()


async def test_what_waits_behind_what_a_master_did_not_take_stays_behind_it_though_that_answers_again() -> None:
    async with nodes() as (node, _):
        url = f"redis+cluster://127.0.0.1:{node.port}"
        store = RedisStore(url, SystemClock(), timeout_s=5, lease_s=30, retention_s=86_400, observer=Remembering())
        store.start()
        cluster = store._lane
        assert isinstance(cluster, Cluster)
        try:
            await until(lambda: cluster.whole)
            node.hangs_up = 2  # what is not answered is sent once more
            calls = [reservation(f"call-{number}", (limit("day", 100), 9)) for number in range(10 * LATE_BATCH)]
            cluster.keep([call.settlement(Usage(1, 1), charging=True) for call in calls])
            await until(lambda: not store.pending)
            assert node.settled == [call.record.encode() for call in calls]
        finally:
            await store.close()
