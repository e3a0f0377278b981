"""Clients that take nothing at all of their answers are cut; those that are merely slow are not."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, flood
from tests.transcripts import answer, chat, chunked, head, http

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
EVENT = chat("x" * 1000)
WHOLE = answer("chat", "x" * (8 * 2**20), usage=(3, 5))  # more than all buffers between a client and a gateway hold
LIMIT_S = 1.0
BOTH_LOOPS = pytest.mark.loops("uvloop", "asyncio")
STUCK = 10
RULES = [{"name": "slots", "per": ["key"], "concurrent": STUCK}]


async def door_with(open_door: OpenDoor, engine: ScriptedEngine, *, limit: str | None = f"{LIMIT_S}s") -> Door:
    return await open_door(engine.url, server={"write_timeout": limit}, limits={"plans": {"standard": RULES}})


@asynccontextmanager
async def client_of(door: Door, body: dict[str, Any]) -> AsyncIterator[socket.socket]:
    """Connect with a small receive buffer, ask, and leave reading to the test."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", door.port))
        data = json.dumps(body).encode()
        lines = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.token()}\r\n"
        lines += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        await loop.sock_sendall(client, lines.encode() + data)
        yield client


async def read(client: socket.socket, size: int) -> bytes:
    """Read until so much came, or the connection ended."""
    received = b""
    async with asyncio.timeout(DEADLINE_S):
        while len(received) < size:
            piece = await asyncio.get_running_loop().sock_recv(client, size - len(received))
            if not piece:
                break
            received += piece
    return received


async def cut_short(client: socket.socket) -> bool:
    """Read what is left; whether it ends before the answer does."""
    try:
        return not (await read(client, 2 * len(WHOLE))).endswith((WHOLE, b"0\r\n\r\n"))
    except ConnectionResetError:
        return True


@BOTH_LOOPS
async def test_streams_that_nobody_reads_are_cut_and_all_they_hold_comes_free(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await door_with(open_door, scripted_engine)
    for _ in range(STUCK):
        scripted_engine.answer(head(), flood(chunked(EVENT)))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(door, ASK | {"stream": True})) for _ in range(STUCK)]
        await scripted_engine.asked(STUCK)
        for request in scripted_engine.requests:
            await request.connection.gone(within_s=DEADLINE_S)
        assert [await cut_short(client) for client in clients] == [True] * STUCK
    samples = await door.idle()
    assert samples.total("gateway_streams_open") == 0
    assert samples.total("gateway_requests_total", outcome="client_gone", status="200") == STUCK
    assert samples.total("gateway_answers_broken_total", reason="write_timeout") == STUCK
    assert samples.total("gateway_upstream_attempts_total", result="answered") == STUCK
    generated = samples.total("gateway_tokens_total", kind="completion", source="estimated")
    sent = sum(request.connection.accepted for request in scripted_engine.requests)
    assert 0 < generated * len(chunked(EVENT)) <= sent  # the rest was in buffers when the engines were cut
    assert (await door.post(CHAT, ASK)).status == 200  # slots are free


@pytest.mark.loops("leaping")  # what the machine stands still for is no time in which nothing was read
async def test_a_stream_that_is_read_slowly_goes_on(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(), flood(chunked(EVENT)))
    door = await door_with(open_door, scripted_engine)
    async with client_of(door, ASK | {"stream": True}) as client:
        engine = (await scripted_engine.asked()).connection
        await engine.stalled()
        loop = asyncio.get_running_loop()
        started = loop.time()
        while loop.time() < started + 4 * LIMIT_S:  # so slowly that the gateway's kernel takes nothing new meanwhile
            await read(client, 10_000)
            await asyncio.sleep(0.1)
        assert not engine.closed.is_set()
    await door.until(lambda s: s.total("gateway_requests_total", outcome="client_gone") == 1)
    assert (await door.metrics()).total("gateway_answers_broken_total") == 0


async def test_without_the_limit_nobody_is_cut(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(), flood(chunked(EVENT)))
    door = await door_with(open_door, scripted_engine, limit=None)
    async with client_of(door, ASK | {"stream": True}):
        engine = (await scripted_engine.asked()).connection
        with pytest.raises(TimeoutError):
            await engine.gone(within_s=3 * LIMIT_S)


@BOTH_LOOPS
async def test_a_whole_answer_that_nobody_reads_is_cut_and_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(http(WHOLE))
    door = await door_with(open_door, scripted_engine)
    async with client_of(door, ASK) as client:
        samples = await door.until(lambda s: s.total("gateway_requests_total", endpoint="chat") == 1)
        assert await cut_short(client)
    assert samples.total("gateway_requests_total", outcome="client_gone", status="200") == 1
    assert samples.total("gateway_answers_broken_total", reason="write_timeout") == 1
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 5


async def test_a_call_ends_when_its_client_has_taken_the_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(http(WHOLE))
    door = await door_with(open_door, scripted_engine, limit=None)
    async with client_of(door, ASK) as client:
        await engine_done(door, scripted_engine)
        assert (await door.metrics()).total("gateway_requests_total", endpoint="chat") == 0
        stopping = asyncio.create_task(door.gateway._pipeline.drain(DEADLINE_S, asyncio.Event()))
        await asyncio.sleep(0)
        assert not stopping.done()  # a gateway that stops waits for it
        assert await read_whole(client) == WHOLE
        await stopping
    samples = await door.until(lambda s: s.total("gateway_requests_total", endpoint="chat") == 1)
    assert samples.total("gateway_requests_total", outcome="ok", status="200") == 1


async def test_a_client_that_leaves_most_of_a_whole_answer_untaken_is_gone(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(http(WHOLE))
    door = await door_with(open_door, scripted_engine, limit=None)
    async with client_of(door, ASK):
        await engine_done(door, scripted_engine)
    samples = await door.until(lambda s: s.total("gateway_requests_total", endpoint="chat") == 1)
    assert samples.total("gateway_requests_total", outcome="client_gone", status="200") == 1
    assert samples.total("gateway_answers_broken_total") == 0
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 5


async def engine_done(door: Door, engine: ScriptedEngine) -> None:
    """Wait until the gateway has all of the engine's answer, and its slot is free."""
    await engine.asked()
    await door.until(lambda s: s.total("gateway_replica_in_flight") == 0)


async def read_whole(client: socket.socket) -> bytes:
    received = await read(client, 2000)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return body + await read(client, length - len(body))


async def test_who_pipelines_and_does_not_read_is_cut(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await door_with(open_door, scripted_engine)
    async with client_of(door, ASK) as client:
        await asyncio.get_running_loop().sock_sendall(client, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
        samples = await door.until(lambda s: s.total("gateway_answers_broken_total", model="unknown") == 1)
    assert samples.total("gateway_requests_total", endpoint="other", outcome="client_gone", status="200") == 1
