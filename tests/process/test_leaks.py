"""After hundreds of calls that ended badly a gateway process has no connection and no file more than before."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import certified
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Reply
from tests.engines import Connection, Received, ScriptedEngine, never, plain_answer
from tests.processes import Loop, Processes, Running, until
from tests.raw_client import raw_client
from tests.transcripts import LAST_CHUNK, chunked, head, transcript

pytestmark = pytest.mark.compiled

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}
AT_ONCE = 20
ABORTED, UNREAD, SILENT = 500, 200, 100
STREAM_S, EVENTS = 0.1, 20


@pytest.fixture
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ScriptedEngine]:
    tls, trusted = certified(tmp_path) if request.param == "tls" else (None, None)
    if trusted is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    scripted = ScriptedEngine()
    await scripted.start(tls=tls)
    yield scripted
    await scripted.close()


async def slow_stream(_: Received, connection: Connection) -> None:
    """Answer with a stream that takes a while."""
    events = transcript(*["x"] * EVENTS)
    await connection.send(head())
    for event in events:
        await connection.send(chunked(event))
        await asyncio.sleep(STREAM_S / len(events))
    await connection.send(LAST_CHUNK)


async def unread_error(_: Received, connection: Connection) -> None:
    await connection.send(head("500 X", content_type="application/json", framing="length", length=10**6) + b"{")
    await never(connection)


async def silence(_: Received, connection: Connection) -> None:
    await never(connection)


class Meeting:
    """Answers calls once all of them are there: they run at once, or never end."""

    def __init__(self) -> None:
        self._barrier = asyncio.Barrier(AT_ONCE)

    async def __call__(self, request: Received, connection: Connection) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._barrier.wait()
        await plain_answer(request, connection)


async def in_turns(calls: list[Awaitable[Any]]) -> list[Any]:
    """Run calls, `AT_ONCE` at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Awaitable[Any]) -> Any:
        async with places:
            return await call

    return await asyncio.gather(*map(one, calls))


async def abort(gateway: Running, call: bytes, after: int) -> None:
    """Leave amid a stream, after so many of its events; below zero: somewhere before it, as time will have it."""
    async with raw_client(gateway.port) as client:
        await client.send(call)
        if after < 0:
            await asyncio.sleep(-after * STREAM_S / EVENTS)
        for _ in range(after):
            await client.until(b"\n\n")
        client.leave()


@pytest.mark.parametrize(
    ("engine", "loop"),
    [("plain", "uvloop"), ("plain", "asyncio"), ("tls", "uvloop"), ("tls", "asyncio")],
    indirect=["engine"],
)
async def test_calls_that_end_badly_leave_nothing_behind(
    processes: Processes, engine: ScriptedEngine, loop: Loop
) -> None:
    config = processes.config(
        models={"tiny": {"pool": "main"}, "silent": {"pool": "main", "timeouts": {"first_byte": "200ms"}}},
        pools={"main": {"replicas": [engine.url], "health": {"interval": "60s"}}},
        limits={"plans": {"standard": [{"name": "at-once", "per": ["key"], "concurrent": 2 * AT_ONCE}]}},
    )
    token = processes.token()
    gateway = await processes.serve(config, loop=loop)

    def good() -> list[Awaitable[Reply]]:
        return [processes.post(gateway, CHAT, ASK, token=token) for _ in range(AT_ONCE)]

    def connections() -> int:
        return sum(not connection.closed.is_set() for connection in engine.connections)

    async def as_many_as_before() -> bool:
        return connections() <= before[0] and gateway.descriptors <= before[1]

    engine.default = Meeting()
    assert {reply.status for reply in await in_turns(good())} == {200}
    before = connections(), gateway.descriptors

    body = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"stream":true}'
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    call = f"{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body
    chance = random.Random(11)
    engine.default = slow_stream
    await in_turns([abort(gateway, call, chance.randint(-EVENTS // 3, EVENTS)) for _ in range(ABORTED)])
    await until(as_many_as_before, within_s=PROMPTLY_S)

    engine.default = unread_error
    replies = await in_turns([processes.post(gateway, CHAT, ASK, token=token) for _ in range(UNREAD)])
    assert {reply.status for reply in replies} == {502}
    engine.default = silence
    unheard = STREAM | {"model": "silent"}
    replies = await in_turns([processes.post(gateway, CHAT, unheard, token=token) for _ in range(SILENT)])
    assert {reply.status for reply in replies} == {502}
    await until(as_many_as_before, within_s=8)  # idle connections are given up after 4 s

    engine.default = Meeting()
    assert {reply.status for reply in await in_turns(good())} == {200}
    await until(as_many_as_before, within_s=8)  # idle connections are given up after 4 s
    samples = await gateway.metrics(processes.session)
    assert samples.total("gateway_requests_in_flight") == samples.total("gateway_replica_in_flight") == 0
    assert samples.total("gateway_requests_total", outcome="client_gone") > ABORTED / 2
    assert "Traceback" not in gateway.log
