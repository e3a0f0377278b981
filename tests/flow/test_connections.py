"""Clients' connections: slow heads, pipelines, bodies nobody wants, uploads held back, and how they are let go."""

import asyncio

import pytest

from gateway.client.head import MAX_HEAD_BYTES
from gateway.client.request import UNASKED_BYTES
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, error_of
from tests.leaping import leaping
from tests.raw_client import raw_client

BODY = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}'
ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{"choices":[]}'
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n\r\n"


def head(door: Door, length: int, *, token: str | None = None) -> bytes:
    fields = (
        f"Authorization: Bearer {token or door.token()}\r\nContent-Type: application/json\r\nContent-Length: {length}"
    )
    return f"POST {CHAT} HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n".encode()


async def test_a_head_that_does_not_arrive_in_time_is_refused_and_its_connection_closed(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, requests={"head_timeout": "50ms"})
    async with raw_client(door.port) as client, raw_client(door.port) as dripping:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-A")
        stop = asyncio.Event()

        async def drip() -> None:
            await dripping.send(b"GET / HTTP/1.1\r\nX-A: ")
            while not stop.is_set():
                await dripping.send(b"a")
                await asyncio.sleep(0.01)

        drops = asyncio.create_task(drip())
        for one in (client, dripping):
            error_of(await one.answer(), 400, "invalid_value", BAD_REQUEST)
        stop.set()
        await drops
        assert await client.rest() == b""
    assert scripted_engine.requests == []


@pytest.mark.loops("leaping")
async def test_a_head_may_wait_behind_an_answer_that_takes_longer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    go_on = asyncio.Event()
    scripted_engine.answer(go_on, ANSWER)
    loop, clock = leaping()
    door = await open_door(scripted_engine.url, clock=clock, requests={"head_timeout": "10s"})
    async with raw_client(door.port) as client:
        second = head(door, len(BODY)) + BODY
        await client.send(head(door, len(BODY)) + BODY + second[:30])
        await scripted_engine.asked()
        await loop.leap(12)  # a look at the limits comes once a second
        go_on.set()
        assert (await client.answer()).status == 200
        assert (await client.ask(second[30:])).status == 200


async def test_a_head_without_end_is_refused_before_it_fills_the_memory(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ")
        reply = asyncio.create_task(client.answer())
        sent = 0
        while not reply.done():
            await client.send(b"a" * 1024)
            sent += 1024
            await asyncio.sleep(0)
        error_of(await reply, 400, "invalid_value", BAD_REQUEST)
    assert sent < 4 * MAX_HEAD_BYTES + 2**20  # what the sockets hold included


async def test_a_long_pipeline_is_answered_whole_and_in_order(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    pair = MODELS % door.token().encode() + b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"
    async with raw_client(door.port) as client:
        sending = asyncio.create_task(client.send(pair * 1000))
        statuses = [(await client.answer()).status for _ in range(2000)]
        await sending
    assert statuses == [200, 404] * 1000


async def test_what_a_stranger_uploads_is_dropped_and_the_connection_goes_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    size = 16 * 2**20
    async with raw_client(door.port) as client:
        sending = asyncio.create_task(client.send(head(door, size, token="x") + bytes(size)))
        error_of(await client.answer(), 401, "invalid_token", "authentication_error")
        await sending  # what it still sends is read and dropped, and the connection goes on
        assert (await client.ask(head(door, len(BODY)) + BODY)).status == 200


async def test_an_upload_waits_until_its_call_has_its_turn(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    """A pipelined upload behind a long answer is not read beyond a bound, and is whole in the end."""
    go_on = asyncio.Event()
    scripted_engine.answer(go_on, ANSWER)
    door = await open_door(scripted_engine.url)
    content = b"a" * (UNASKED_BYTES * 256)  # more than the sockets hold
    large = BODY.replace(b"Hi", content)
    async with raw_client(door.port) as client:
        await client.send(head(door, len(BODY)) + BODY)
        await scripted_engine.asked()
        sending = asyncio.create_task(
            client.send(head(door, len(large)) + large + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        )
        for _ in range(1000):  # turns of the loop that we share: more than all its reads would take
            await asyncio.sleep(0)
        assert not sending.done()
        go_on.set()
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 404]
        await sending
    assert scripted_engine.requests[-1].body == large


async def test_idle_connections_are_closed_at_a_stop_and_busy_ones_after_their_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    go_on = asyncio.Event()
    scripted_engine.answer(go_on, ANSWER)
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as idle, raw_client(door.port) as used, raw_client(door.port) as busy:
        assert (await used.ask(MODELS % door.token().encode())).status == 200
        await busy.send(head(door, len(BODY)) + BODY)
        await scripted_engine.asked()
        stopping = asyncio.create_task(door.gateway.stop())
        assert await idle.rest() == await used.rest() == b""
        go_on.set()
        reply = await busy.answer()
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
        assert await busy.rest() == b""
        async with asyncio.timeout(DEADLINE_S):
            await stopping
