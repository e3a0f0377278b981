"""Clients that leave, at each point of the path and in each way, before engines with and without TLS.

The engine is hung up on within a second, whatever was held for the call is free again, nothing is tried for a client
that is not there, and neither replica nor log is any the worse for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.backlog import nobody_accepts
from tests.certificates import certified
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Connection, ScriptedEngine, Step, flood, never, reset
from tests.leaving import How, client_of
from tests.transcripts import DONE, answer, chat, chunked, head, http, usage_event, usage_of

pytestmark = pytest.mark.loops("uvloop", "asyncio")

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
STREAM = ASK | {"stream": True}
WHOLE = http(answer("chat", "Hello", usage=(3, 1)))
WAYS = pytest.mark.parametrize("how", ["fin", "reset", "half-close"])


@dataclass(frozen=True)
class Point:
    """Where a call stands when its client leaves: what the engine sent, and what of it the client has read.

    `generated` is the least that is charged for it. Without `shows` the client has nothing yet. `floods`: more comes
    than the client reads, and the engine waits.
    """

    sends: tuple[Step, ...]
    stream: bool = True
    shows: bytes = b""
    generated: int = 0
    floods: bool = False


def token(number: int) -> bytes:
    return chat(f" {number}", usage=usage_of((3, number)))


async def steadily(connection: Connection) -> None:
    """Step: an event every few milliseconds, until the peer leaves."""
    number = 1
    while True:
        await connection.send(chunked(token(number)))
        await asyncio.sleep(0.005)
        number += 1


POINTS = {
    "before a head": Point(()),
    "before the head of a whole answer": Point((), stream=False),
    "after an interim answer": Point((b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",)),
    "after a head": Point((head(),)),
    "after a comment": Point((head(), chunked(b": a\n\n"))),
    "within the first event": Point((head(), chunked(token(1)[:30]))),
    "within a whole answer": Point((WHOLE[:-5],), stream=False),
    "in a silence": Point((head(), chunked(token(1)), chunked(token(2))), shows=b'" 2"', generated=2),
    "within an event": Point((head(), chunked(token(1)), chunked(token(2)[:30])), shows=b'" 1"', generated=1),
    "amid events": Point((head(), steadily), shows=b'" 3"', generated=3),
    "while it cannot keep up": Point((head(), flood(chunked(token(1)))), shows=b'" 1"', generated=1, floods=True),
    "before the last event": Point(
        (head(), chunked(token(1)), chunked(chat("", finish_reason="stop", usage=usage_of((3, 2))))),
        shows=b'" 1"',
        generated=2,
    ),
    "before the end of a broken answer": Point(
        (head(), chunked(token(1)), b"3e8\r\n" + token(2)), shows=b'" 2"', generated=2
    ),
}
RULES = [
    {"name": "one", "per": ["key"], "concurrent": 1},
    {"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "366d"},
]


async def opened(open_door: OpenDoor, *engines: ScriptedEngine) -> Door:
    return await open_door(*[engine.url for engine in engines], limits={"plans": {"standard": RULES}})


async def nothing_is_held(door: Door, *, generated: float, exactly: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the call is over, once, and that the next one finds the key's slot and all tokens but what it used."""
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="client_gone") == 1
    assert samples.total("gateway_requests_total") == 1
    assert samples.total("gateway_replica_up") >= 1
    assert samples.total("gateway_streams_open") == 0
    charged = samples.total("gateway_tokens_total", kind="completion")
    assert charged == generated if exactly else charged >= generated
    reply = await door.post(CHAT, ASK)
    assert (reply.status, reply.headers["x-ratelimit-remaining-tokens"]) == (200, str(900 - int(charged)))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.fixture(params=["plain", "tls"])
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ScriptedEngine]:
    """Give an engine with TLS and one without, the one's certificate trusted as the system's are."""
    tls, trusted = certified(tmp_path) if request.param == "tls" else (None, None)
    if trusted is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    scripted = ScriptedEngine()
    await scripted.start(tls=tls)
    yield scripted
    await scripted.close()


@WAYS
@pytest.mark.parametrize("name", POINTS)
async def test_a_client_that_leaves_frees_its_engine(
    open_door: OpenDoor, engine: ScriptedEngine, name: str, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    point, sent = POINTS[name], asyncio.Event()

    async def tell(_: Connection) -> None:
        sent.set()

    streams_on = point.sends[-1:] and not isinstance(point.sends[-1], bytes)
    engine.answer(*point.sends, *(() if streams_on else (tell, never)))
    door = await opened(open_door, engine)
    async with client_of(door) as client:
        await client.ask(door, STREAM if point.stream else ASK)
        connection = (await engine.asked()).connection
        if point.shows:
            await client.reads(point.shows)
            if point.floods:
                await connection.stalled()
        else:
            await asyncio.wait_for(sent.wait(), PROMPTLY_S)
        client.leave(how)
        await connection.gone(within_s=PROMPTLY_S)
    exactly = not streams_on
    await nothing_is_held(door, generated=point.generated, exactly=exactly, caplog=caplog)
    assert len(engine.requests) == 2  # the second is the one that found everything free


@WAYS
@pytest.mark.parametrize("withhold", [1, 40])
async def test_before_its_body_is_there_no_engine_is_asked(
    open_door: OpenDoor, engine: ScriptedEngine, how: How, withhold: int, caplog: pytest.LogCaptureFixture
) -> None:
    door = await opened(open_door, engine)
    async with client_of(door) as client:
        await client.ask(door, STREAM, withhold=withhold)
        client.leave(how)
        await door.until(lambda samples: samples.total("gateway_requests_total") == 1)
    await nothing_is_held(door, generated=0, exactly=True, caplog=caplog)
    assert len(engine.requests) == 1


@WAYS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_a_second_attempt_gets_no_third(
    open_door: OpenDoor,
    scripted_engines: Callable[[], Awaitable[ScriptedEngine]],
    how: How,
    caplog: pytest.LogCaptureFixture,
    *,
    stream: bool,
) -> None:
    engines = [await scripted_engines() for _ in range(3)]
    hanging: asyncio.Queue[Connection] = asyncio.Queue()

    async def first_resets_then_hang(request: Any, connection: Connection) -> None:
        if sum(len(one.requests) for one in engines) == 1:
            await reset(connection)
        else:
            await hanging.put(connection)
            await connection.closed.wait()

    for one in engines:
        one.answer_with(first_resets_then_hang)
    door = await opened(open_door, *engines)
    async with client_of(door) as client:
        await client.ask(door, STREAM if stream else ASK)
        connection = await asyncio.wait_for(hanging.get(), PROMPTLY_S)
        client.leave(how)
        await connection.gone(within_s=PROMPTLY_S)
        samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="client_gone", status="499") == 1
    assert samples.total("gateway_upstream_attempts_total") == 1  # the one that failed; the other never ended
    assert sum(len(one.requests) for one in engines) == 2
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@WAYS
async def test_a_client_that_leaves_while_its_body_goes_to_an_engine_that_does_not_read_it(
    open_door: OpenDoor, how: How
) -> None:
    begun, left, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readline()).startswith(b"POST"):  # not a probe
            begun.set()
            await left.wait()
            with suppress(ConnectionError):
                while await reader.read(2**20):
                    pass
            gone.set()
        writer.close()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1000) as server:
        door = await open_door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with client_of(door) as client:
            await client.ask(door, STREAM | {"messages": [{"role": "user", "content": "x" * 10_000_000}]})
            await asyncio.wait_for(begun.wait(), DEADLINE_S)
            client.leave(how)
            await door.until(lambda samples: samples.total("gateway_requests_total", outcome="client_gone") == 1)
            left.set()
            await asyncio.wait_for(gone.wait(), PROMPTLY_S)


@WAYS
async def test_a_client_that_leaves_after_the_last_event_has_had_a_whole_answer(
    open_door: OpenDoor, engine: ScriptedEngine, how: How
) -> None:
    engine.answer(head(), *map(chunked, [token(1), chat("", finish_reason="stop"), usage_event(3, 2), DONE]), never)
    door = await opened(open_door, engine)
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        await client.reads(b"[DONE]")
        client.leave(how)
        await (await engine.asked()).connection.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="ok") == 1
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2


async def test_one_that_left_is_not_mistaken_for_the_next_on_its_engine(
    open_door: OpenDoor, engine: ScriptedEngine
) -> None:
    door = await opened(open_door, engine)
    for number in range(20):
        engine.answer(head(), chunked(chat(f" secret-{number}")), never)
        async with client_of(door) as client:
            await client.ask(door, STREAM)
            await client.reads(b"secret")
            client.leave("reset")
            await door.idle()
        assert b"secret" not in (await door.post(CHAT, STREAM)).body


async def test_before_an_engine_took_the_connection_nothing_is_charged(open_door: OpenDoor) -> None:
    with nobody_accepts() as url:
        door = await open_door(url)
        async with client_of(door) as client:
            await client.ask(door, STREAM)
            await door.until(lambda samples: samples.total("gateway_replica_in_flight") == 1)
            client.leave("fin")
            samples = await door.idle()
    assert samples.total("gateway_tokens_total") == 0
