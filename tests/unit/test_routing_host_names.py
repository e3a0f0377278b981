"""Names are looked up each by itself: one whose servers do not answer keeps nobody else from his, nor from its last."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.config import PoolEntry
from gateway.outbox import Outbox
from gateway.relay.upstream import Upstream
from gateway.routing.host_names import PATIENCE_S, Address, HostNames
from gateway.routing.replica import Replica
from tests.backlog import nobody_accepts
from tests.deadlines import DEADLINE_S

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]
ADDRESS = Address(socket.AF_INET, "10.0.0.1")


class Servers:
    """What answers for all names. Those that `hang` are answered at the end of the test."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.hang: set[str] = set()
        self.fails: dict[str, int] = {}
        self.over = threading.Event()

    def look_up(self, host: str) -> Sequence[tuple[Any, ...]]:
        self.asked[host] += 1
        if host in self.hang:
            self.over.wait(10)
        if host in self.fails:
            raise socket.gaierror(self.fails[host], "no")
        return FOUND


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.over.set()


async def waits(names: HostNames, host: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await names.addresses(host)


async def test_a_name_that_nobody_answers_for_has_one_thread_and_holds_up_no_other(servers: Servers) -> None:
    names = HostNames(servers.look_up)
    hung = {f"hung-{number}" for number in range(20)}
    servers.hang |= hung
    await asyncio.gather(*[waits(names, host) for host in hung for _ in range(5)])
    async with asyncio.timeout(DEADLINE_S):
        assert await names.addresses("well") == [ADDRESS]
    assert servers.asked == dict.fromkeys(hung, 1) | {"well": 1}


@pytest.mark.loops("leaping")  # nobody is patient for what the machine stands still for
async def test_what_was_found_last_holds_where_nobody_answers_but_not_for_a_name_that_is_gone(
    servers: Servers,
) -> None:
    names = HostNames(servers.look_up)
    assert await names.addresses("a") == [ADDRESS]
    servers.fails["a"] = socket.EAI_AGAIN
    assert await names.addresses("a") == [ADDRESS]
    servers.hang.add("a")
    began = asyncio.get_running_loop().time()
    assert await asyncio.gather(*[names.addresses("a") for _ in range(3)]) == [[ADDRESS]] * 3
    assert PATIENCE_S <= asyncio.get_running_loop().time() - began < 3 * PATIENCE_S
    servers.fails["a"] = socket.EAI_NONAME
    servers.over.set()
    async with asyncio.timeout(DEADLINE_S):
        while "a" in names._under_way:
            await asyncio.sleep(0.01)
    for _ in range(2):
        with pytest.raises(socket.gaierror):
            await names.addresses("a")
    del servers.fails["a"]
    assert await names.addresses("a") == [ADDRESS]


async def test_addresses_are_not_looked_up_and_zones_stay(servers: Servers) -> None:
    names = HostNames(servers.look_up)
    assert await names.addresses("10.0.0.7") == [Address(socket.AF_INET, "10.0.0.7")]
    assert await names.addresses("fe80::1%lo") == [Address(socket.AF_INET6, "fe80::1%lo")]
    assert servers.asked == {}
    zoned = HostNames(lambda _: [(socket.AF_INET6, 1, 6, "", ("fe80::1", 0, 0, 3)), *FOUND, *FOUND])
    assert [one["host"] for one in await zoned.resolve("a", 80)] == ["fe80::1%3", "10.0.0.1"]
    assert [one["host"] for one in await zoned.resolve("a", 80, socket.AF_INET)] == ["10.0.0.1"]


async def test_a_replica_is_reached_at_the_first_of_its_addresses_that_takes_a_connection() -> None:
    there = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
    names = HostNames(lambda _: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in there])
    upstream = Upstream(SystemClock(), Outbox(asyncio.get_running_loop()), names)
    with socket.create_server(("127.0.0.1", 0)) as engine:
        port = engine.getsockname()[1]
        connection = await upstream.connect(replica_at(port))
        assert connection.transport is not None
        assert connection.transport.get_extra_info("peername") == ("127.0.0.1", port)
        connection.abort()
        del there[2]
        with pytest.raises(ConnectionRefusedError):
            await upstream.connect(replica_at(port))


async def test_an_address_that_says_nothing_holds_up_no_other() -> None:
    there = ["127.0.0.2", "127.0.0.1"]
    names = HostNames(lambda _: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in there])
    upstream = Upstream(SystemClock(), Outbox(asyncio.get_running_loop()), names)
    with socket.create_server(("127.0.0.1", 0)) as engine:
        port = engine.getsockname()[1]
        with nobody_accepts(port, host="127.0.0.2"):
            async with asyncio.timeout(DEADLINE_S):  # the system's own limit is two minutes
                connection = await upstream.connect(replica_at(port))
            assert connection.transport is not None
            assert connection.transport.get_extra_info("peername") == ("127.0.0.1", port)
            connection.abort()
            del there[1:]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await upstream.connect(replica_at(port))


def replica_at(port: int) -> Replica:
    entry = PoolEntry.model_validate({"replicas": [f"http://engine.example:{port}"]})
    return Replica(entry.replicas[0], entry)


async def test_a_name_that_cannot_be_one_is_not_found() -> None:
    with pytest.raises(OSError, match="label"):
        await HostNames().addresses("a..b")


async def test_a_name_is_looked_up_again_when_there_was_no_thread_for_it_and_waits_for_nobody_at_the_end(
    servers: Servers,
) -> None:
    names = HostNames(servers.look_up)
    threading.stack_size(1 << 46)  # more than a process can have
    try:
        with pytest.raises(BlockingIOError):
            await names.addresses("a")
    finally:
        threading.stack_size(0)
    async with asyncio.timeout(DEADLINE_S):
        assert await names.addresses("a") == [ADDRESS]
        servers.hang.add("hung")
        waiting = asyncio.create_task(names.addresses("hung"))
        while not servers.asked["hung"]:
            await asyncio.sleep(0.01)
        await names.close()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
