"""What a link makes of connections that are lost, refused, silent or late."""

import asyncio
from typing import Any

import pytest

from gateway.admission.redis.connection import Connection, ServerFailed
from gateway.admission.redis.link import Link, LinkFailed
from gateway.admission.redis.server import Server
from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S
from tests.leaping import leaping
from tests.store_wire import Wire, wired


class Scripted(Server):
    """A server that lets in whom the test says, when it says so."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1/0", [])
        self.asked = 0
        self._doors: asyncio.Queue[Connection | Exception] = asyncio.Queue()

    async def connect(self, *, within_s: float) -> Connection:
        assert within_s > 0
        self.asked += 1
        door = await self._doors.get()
        if isinstance(door, Exception):
            raise door
        return door

    def refuse(self, error: Exception) -> None:
        self._doors.put_nowait(error)

    def let_in(self) -> tuple[Connection, Wire]:
        connection, wire = wired()
        self._doors.put_nowait(connection)
        return connection, wire


@pytest.fixture
def server() -> Scripted:
    return Scripted()


def exchange(link: Link, *commands: bytes, within_s: float = 5) -> asyncio.Future[Any]:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link.exchange(commands, ended.set_result, within_s=within_s)
    return ended


async def sent(wire: Wire, *pipelines: bytes) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(wire.written) < len(pipelines):
            await asyncio.sleep(0)
    assert wire.written == list(pipelines)


async def test_a_pipeline_whose_connection_is_lost_is_sent_once_more_on_a_new_one(server: Scripted) -> None:
    link = Link(server, SystemClock())
    first, wire = server.let_in()
    ended = exchange(link, b"a", b"b")
    await sent(wire, b"ab")
    first.data_received(b":1\r\n")
    second, wire = server.let_in()
    first.connection_lost(None)
    await sent(wire, b"ab")
    second.data_received(b":3\r\n:4\r\n")
    assert await ended == [3, 4]
    ended = exchange(link, b"c")
    await sent(wire, b"ab", b"c")
    second.data_received(b":5\r\n")
    assert await ended == [5]
    assert server.asked == 2
    await link.close()


async def test_a_pipeline_that_is_lost_twice_has_failed(server: Scripted) -> None:
    link = Link(server, SystemClock())
    ended = exchange(link, b"a")
    for _ in range(2):
        connection, wire = server.let_in()
        await sent(wire, b"a")
        connection.data_received(b"-NOSCRIPT forgotten\r\n")
    failure = await ended
    assert isinstance(failure, LinkFailed)
    assert str(failure) == "ServerFailed: NOSCRIPT forgotten"
    assert failure.sent
    await link.close()


async def test_a_connection_that_was_closed_between_exchanges_is_made_anew(server: Scripted) -> None:
    link = Link(server, SystemClock())
    first, wire = server.let_in()
    ended = exchange(link)
    assert await ended == []
    assert wire.written == []
    first.connection_lost(None)
    second, wire = server.let_in()
    ended = exchange(link, b"a")
    await sent(wire, b"a")
    second.data_received(b":1\r\n")
    assert await ended == [1]
    await link.close()


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), TimeoutError(), ServerFailed("NOAUTH")])
@pytest.mark.parametrize("before", [True, False])
async def test_what_cannot_be_connected_to_fails_at_once(server: Scripted, error: Exception, before: bool) -> None:
    link = Link(server, SystemClock())
    if before:
        connection, wire = server.let_in()
    ended = exchange(link, b"a")
    server.refuse(error)
    if before:
        await sent(wire, b"a")
        connection.connection_lost(None)
    failure = await ended
    assert isinstance(failure, LinkFailed)
    assert str(failure) == f"{type(error).__name__}: {error}"
    assert failure.sent is before
    await link.close()


@pytest.mark.loops("leaping")
async def test_a_reply_that_is_too_late_is_nobodys_answer(server: Scripted) -> None:
    loop, clock = leaping()
    link = Link(server, clock)
    connection, wire = server.let_in()
    late = exchange(link, b"a", within_s=1)
    await sent(wire, b"a")
    await loop.leap(2)
    failure = await late
    assert isinstance(failure, LinkFailed)
    assert failure.sent
    assert wire.aborted
    second, wire = server.let_in()
    ended = exchange(link, b"b")
    connection.data_received(b":1\r\n")
    await sent(wire, b"b")
    second.data_received(b":2\r\n")
    assert await ended == [2]
    await link.close()


async def test_a_connection_that_is_too_late_for_one_exchange_serves_the_next(server: Scripted) -> None:
    link = Link(server, SystemClock())
    for _ in range(2):
        failure = await exchange(link, b"a", within_s=0.01)
        assert isinstance(failure, LinkFailed)
        assert not failure.sent
    connection, wire = server.let_in()
    await asyncio.sleep(0.01)
    ended = exchange(link, b"b")
    assert wire.written == [b"b"]
    connection.data_received(b":1\r\n")
    assert await ended == [1]
    assert server.asked == 1
    await link.close()


async def test_closing_hangs_up_and_connects_no_more(server: Scripted) -> None:
    link = Link(server, SystemClock())
    ended = exchange(link, b"a")
    await asyncio.sleep(0)
    await link.close()
    assert server.asked == 1
    _, wire = server.let_in()
    link = Link(server, SystemClock())
    again = exchange(link, b"a")
    await sent(wire, b"a")
    await link.close()
    assert wire.aborted
    assert not ended.done()
    assert not again.done()
