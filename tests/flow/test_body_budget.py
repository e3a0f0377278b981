"""Large bodies of all calls together: past a budget they are refused before they are read, and it is free again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, Step, never, reset
from tests.envelope import BAD_REQUEST, SERVER_ERROR, error_of
from tests.leaving import client_of
from tests.raw_client import raw_client
from tests.transcripts import answer, chat, chunked, head, http, sse, transcript

BUDGET = 2**20
LIMIT = 600_000  # two such bodies do not fit at once
SMALL = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}'
RULES = [{"name": "requests", "per": ["key"], "requests": 1000, "window": "366d"}]
HAS_ROOM = http(answer("chat", "Hello", usage=(3, 1)))


def body_of(size: int, *, model: str = "tiny", stream: bool = False) -> bytes:
    before = b'{"model":"%b","stream":%b,"messages":[{"role":"user","content":"' % (
        model.encode(),
        (b"false", b"true")[stream],
    )
    return before + b"a" * (size - len(before) - 4) + b'"}]}'


LARGE = body_of(LIMIT)


def call(door: Door, body: bytes = LARGE, *, declared: int | None = None) -> bytes:
    framing = "Transfer-Encoding: chunked" if declared == 0 else f"Content-Length: {declared or len(body)}"
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {door.token()}\r\n"
    return f"{fields}Content-Type: application/json\r\n{framing}\r\n\r\n".encode() + body


async def opened(open_door: OpenDoor, engine: ScriptedEngine, **requests: str) -> Door:
    return await open_door(
        engine.url,
        server={"max_body": f"{LIMIT}B", "body_budget": f"{BUDGET}B"},
        requests=requests,
        limits={"plans": {"standard": RULES}},
        pools={"main": {"attempts": 1}},
    )


def no_room(reply: Reply) -> None:
    """Check a refusal, which is its connection's last answer."""
    message = error_of(reply, 503, "overloaded", SERVER_ERROR)
    assert message.startswith("Too many large bodies are under way")
    assert reply.headers["Connection"] == "close"


@pytest.fixture
async def full(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> Any:
    """Give a gateway in which one large body is at its engine, and leaves no room for another."""
    scripted_engine.answer(never)
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        await client.send(call(door))
        await scripted_engine.asked()
        yield door


async def test_a_declared_body_without_room_is_refused_before_it_is_read(
    full: Door, scripted_engine: ScriptedEngine
) -> None:
    async with raw_client(full.port) as client:
        no_room(await client.ask(call(full, b"", declared=BUDGET - LIMIT + 1)))
    assert len(scripted_engine.requests) == 1
    samples = await full.until(lambda s: s.total("gateway_requests_total", status="503") == 1)
    assert samples.total("gateway_requests_total", status="503", outcome="refused") == 1
    reply = await full.post(CHAT, SMALL)
    assert reply.headers["x-ratelimit-remaining-requests"] == "998"  # of the two that were admitted


async def test_an_upload_without_a_length_is_refused_where_room_ends(
    full: Door, scripted_engine: ScriptedEngine
) -> None:
    part = b"8000\r\n" + b"a" * 0x8000 + b"\r\n"
    async with raw_client(full.port) as client:
        await client.send(call(full, part * 10, declared=0))
        reply = asyncio.create_task(client.answer())
        for _ in range(50):  # turns of the loop that we share: more than an answer would take
            await asyncio.sleep(0)
        assert not reply.done()
        await client.send(part * 10)
        no_room(await reply)
    assert len(scripted_engine.requests) == 1


async def test_small_calls_pass_where_there_is_no_room(full: Door) -> None:
    async with raw_client(full.port) as client:
        for _ in range(3):
            assert (await client.ask(call(full, SMALL))).status == 200


async def test_what_fits_passes(full: Door) -> None:
    async with raw_client(full.port) as client:
        for _ in range(3):
            assert (await client.ask(call(full, body_of(BUDGET - LIMIT)))).status == 200


async def test_too_large_stays_too_large(full: Door) -> None:
    async with raw_client(full.port) as client:
        reply = await client.ask(call(full, b"", declared=LIMIT + 1))
        error_of(reply, 400, "request_too_large", BAD_REQUEST)


async def test_who_declares_much_and_sends_nothing_takes_no_room(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine)
    async with AsyncExitStack() as stack:
        for _ in range(10):
            await (await stack.enter_async_context(raw_client(door.port))).send(call(door, b"", declared=LIMIT))
        async with raw_client(door.port) as client:
            assert (await client.ask(call(door))).status == 200


async def test_of_uploads_at_once_one_gets_through_for_each_that_fits(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door, go = await opened(open_door, scripted_engine), asyncio.Event()
    scripted_engine.answer(go, HAS_ROOM)

    async def upload() -> Reply:
        async with raw_client(door.port) as client:
            for start in range(0, LIMIT, 50_000):
                await client.send(call(door, b"", declared=LIMIT) * (not start) + LARGE[start : start + 50_000])
                await asyncio.sleep(0)
            return await client.answer()

    uploads = [asyncio.create_task(upload()) for _ in range(10)]
    await door.until(lambda s: s.total("gateway_requests_total", status="503") == 9)
    go.set()
    assert sorted([(await one).status for one in uploads]) == [200] + [503] * 9
    assert len(scripted_engine.requests) == 1


def answered(*steps: Step, status: int = 200, body: bytes = LARGE) -> Callable[[Door, ScriptedEngine], Awaitable[None]]:
    async def act(door: Door, engine: ScriptedEngine) -> None:
        engine.answer(*steps)
        async with raw_client(door.port) as client:
            assert (await client.ask(call(door, body))).status == status

    return act


async def leave_the_upload(door: Door, _: ScriptedEngine) -> None:
    async with raw_client(door.port) as client:
        await client.send(call(door, LARGE[:-1], declared=LIMIT))
        client.leave()


async def never_end_the_upload(door: Door, _: ScriptedEngine) -> None:
    async with raw_client(door.port) as client:
        reply = await client.ask(call(door, LARGE[:-1], declared=LIMIT))
        error_of(reply, 400, "invalid_json", BAD_REQUEST)


async def leave_the_engine(door: Door, engine: ScriptedEngine) -> None:
    asked = len(engine.requests)
    engine.answer(never)
    async with raw_client(door.port) as client:
        await client.send(call(door))
        await engine.asked(asked + 1)
        client.leave()


async def leave_the_stream(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(head(), chunked(chat(" a")), never)
    async with client_of(door) as client:
        await client.ask(
            door, {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "a" * 500_000}]}
        )
        await client.reads(b" a")
        client.leave("reset")


STREAM = body_of(LIMIT, stream=True)
ENDINGS: dict[str, Callable[[Door, ScriptedEngine], Awaitable[None]]] = {
    "a whole answer": answered(HAS_ROOM),
    "a stream": answered(sse(transcript(" a")), body=STREAM),
    "a stream that breaks": answered(head(), chunked(chat(" a")), reset, body=STREAM),
    "an engine that fails": answered(http(b"", status="500 X"), status=502),
    "an engine's word that the call is wrong": answered(http(b"{}", status="400 X"), status=400),
    "a call that is none": answered(status=400, body=b"x" * LIMIT),
    "a model that is not there": answered(status=404, body=body_of(LIMIT, model="none")),
    "a client that leaves its upload": leave_the_upload,
    "an upload that does not end in time": never_end_the_upload,
    "a client that leaves its engine": leave_the_engine,
    "a client that leaves its stream": leave_the_stream,
}


async def asked_anew(door: Door) -> int:
    """Send a call on a connection of its own: one that was refused ends with its answer."""
    async with raw_client(door.port) as client:
        return (await client.ask(call(door))).status


@pytest.mark.parametrize("name", ENDINGS)
async def test_room_is_free_again_after_every_ending(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    requests = {"body_timeout": "500ms"} if ENDINGS[name] is never_end_the_upload else {}
    door = await opened(open_door, scripted_engine, **requests)
    for _ in range(2):
        asked = len(scripted_engine.requests)
        scripted_engine._scripts.clear()
        await ENDINGS[name](door, scripted_engine)
        await door.idle()
        scripted_engine._scripts.clear()
        async with asyncio.timeout(DEADLINE_S):
            while await asked_anew(door) != 200:  # that a client left is seen a moment later
                await asyncio.sleep(0.01)
        assert len(scripted_engine.requests) > asked
