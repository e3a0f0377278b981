"""Stopping: calls under way end well within the drain's time, and visibly after it."""

import asyncio
import json
import socket

import pytest

from gateway.client.clients import GRACE_S
from tests.backlog import nobody_accepts
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, never
from tests.raw_client import raw_client
from tests.transcripts import LAST_CHUNK, chat, chat_role, chunked, head, transcript

STREAM = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


async def test_a_stream_under_way_ends_well(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    events = transcript(" a", " b")
    go_on = asyncio.Event()
    scripted_engine.answer(head(), chunked(events[0]), go_on, *map(chunked, events[1:]), LAST_CHUNK)
    door = await open_door(scripted_engine.url)
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await scripted_engine.asked()
    await door.until(lambda s: s.total("gateway_streams_open") == 1)
    stopping = asyncio.create_task(door.gateway.stop())
    async with asyncio.timeout(DEADLINE_S):
        while (await door.get_admin("/readyz")).status != 503:
            await asyncio.sleep(0.01)
    assert (await door.get_admin("/livez")).status == 200
    go_on.set()
    assert (await reply).body == b"".join(events)
    await stopping


async def test_a_stream_past_the_drains_time_ends_visibly(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    sent = [chat_role(), chat(" a")]
    scripted_engine.answer(head() + b"".join(map(chunked, sent)), never)
    door = await open_door(scripted_engine.url, server={"drain_timeout": "100ms"})
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await scripted_engine.asked()
    await door.until(lambda s: s.total("gateway_streams_open") == 1)
    await door.gateway.stop()
    body = (await reply).body
    assert body.startswith(b"".join(sent))
    error = json.loads(body.removeprefix(b"".join(sent)).removeprefix(b"data: "))["error"]
    assert error["code"] == "draining"
    assert json.loads((await door.logged(1))[-1])["broken_by"] == "draining"


async def test_a_call_whose_engine_takes_no_connection_is_refused_at_the_end(open_door: OpenDoor) -> None:
    with nobody_accepts() as url:
        pools = {"main": {"timeouts": {"connect": "30s"}}}
        door = await open_door(url, server={"drain_timeout": "100ms"}, pools=pools)
        reply = asyncio.create_task(door.post(CHAT, STREAM))
        await door.until(lambda s: s.total("gateway_replica_in_flight") == 1)
        await door.gateway.stop()
        answer = await reply
    assert (answer.status, answer.error["code"]) == (503, "draining")


async def test_a_call_that_has_no_answer_yet_is_refused_at_the_end(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(never)
    door = await open_door(scripted_engine.url, server={"drain_timeout": "100ms"})
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await scripted_engine.asked()
    await door.gateway.stop()
    answer = await reply
    assert (answer.status, answer.error["code"]) == (503, "draining")
    assert answer.headers["Connection"] == "close"
    assert answer.headers["Retry-After"] == "1"


async def test_a_call_that_comes_whole_only_after_the_drains_time_is_refused(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    scripted_engine.answer(head(), chunked(chat_role()), never)
    door = await open_door(scripted_engine.url, server={"drain_timeout": "50ms"})
    whole = asking(door, stream=True)
    async with raw_client(door.port) as client:
        await client.send(whole[:-1])
        stopping = asyncio.create_task(door.gateway.stop())
        async with asyncio.timeout(DEADLINE_S):
            while "still under way" not in caplog.text:
                await asyncio.sleep(0.01)
        answer = await client.ask(whole[-1:])
    assert (answer.status, answer.error["code"]) == (503, "draining")
    await stopping
    assert not scripted_engine.requests


async def test_while_clients_move_all_are_answered_and_told_to_leave(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, server={"drain_delay": "5s"})
    async with raw_client(door.port) as kept, raw_client(door.port) as silent:
        assert "Connection" not in (await kept.ask(asking(door))).headers
        stopping = asyncio.create_task(door.gateway.stop())
        assert await unready(door) == "this gateway is about to stop"
        assert (await door.get_admin("/livez")).status == 200
        for client in (kept, silent):
            answer = await client.ask(asking(door))
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert await client.rest() == b""
        async with raw_client(door.port) as new:
            answer = await new.ask(asking(door))
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        door.gateway.hurry()
        await asyncio.wait_for(stopping, DEADLINE_S)


async def test_after_the_delay_connections_are_refused_and_idle_ones_closed(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    go = asyncio.Event()
    events = transcript(" a", " b")
    scripted_engine.answer(head(), chunked(events[0]), go, *map(chunked, events[1:]), LAST_CHUNK)
    door = await open_door(scripted_engine.url, server={"drain_delay": "100ms"})
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await scripted_engine.asked()
    async with raw_client(door.port) as idle:
        stopping = asyncio.create_task(door.gateway.stop())
        assert await idle.rest() == b""
        assert refused(door.port)
        assert not stopping.done()
    go.set()
    assert (await reply).body == b"".join(events)
    await stopping


async def test_told_to_stop_again_it_ends_calls_at_once_and_visibly(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    sent = [chat_role(), chat(" a")]
    scripted_engine.answer(head() + b"".join(map(chunked, sent)), never)
    door = await open_door(scripted_engine.url, server={"drain_delay": "60s", "drain_timeout": "60s"})
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await scripted_engine.asked()
    await door.until(lambda s: s.total("gateway_streams_open") == 1)
    stopping = asyncio.create_task(door.gateway.stop())
    await unready(door)
    door.gateway.hurry()
    error = (await reply).body.removeprefix(b"".join(sent)).removeprefix(b"data: ")
    assert json.loads(error)["error"]["code"] == "draining"
    await asyncio.wait_for(stopping, DEADLINE_S)
    assert refused(door.port)


async def test_who_waits_to_be_accepted_when_the_port_closes_is_answered(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    waiting = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(20)]  # while the loop cannot accept
    call = asking(door)
    stopping = asyncio.create_task(door.gateway.stop())
    while len(door.gateway._clients._connections) < len(waiting):
        await asyncio.sleep(0)
    for one in waiting:  # at once: the grace is short
        one.sendall(call)
    for reader, writer in [await asyncio.open_connection(sock=one) for one in waiting]:
        answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" in answer
        writer.close()
    await stopping


async def test_a_request_that_follows_the_last_answer_at_once_is_answered(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    go = asyncio.Event()
    events = transcript(" a")
    scripted_engine.answer(head(), chunked(events[0]), go, *map(chunked, events[1:]), LAST_CHUNK)
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        await client.send(asking(door, stream=True))
        await client.until(b"\r\n\r\n")  # a head that said nothing of an end
        await door.until(lambda s: s.total("gateway_streams_open") == 1)
        stopping = asyncio.create_task(door.gateway.stop())
        await unready(door)
        await asyncio.sleep(GRACE_S / 5)
        go.set()
        await client.until(b"\r\n0\r\n\r\n")
        answer = await client.ask(asking(door))
        assert (answer.status, answer.headers["Connection"]) == (503, "close")
        assert answer.headers["Retry-After"] == "1"
    await stopping


def asking(door: Door, *, stream: bool = False) -> bytes:
    body = json.dumps(STREAM | {"stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Authorization: Bearer {door.token()}\r\n\r\n".encode() + body


async def unready(door: Door) -> str:
    """Wait until the gateway is not ready; return why."""
    async with asyncio.timeout(DEADLINE_S):
        while (ready := await door.get_admin("/readyz")).status != 503:
            await asyncio.sleep(0.01)
    return str(ready.json()["checks"]["draining"])


def refused(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0
