"""Clients that leave: the engine is hung up on within a second, and what was generated is charged, once."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from tests.backlog import nobody_accepts
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, never
from tests.transcripts import chat, chat_role, chunked, head, transcript

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}
ENGINE_FREE_WITHIN_S = 1.0
How = Literal["fin", "reset"]


class RawClient:
    """A client that can leave as clients do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def ask(self, door: Door, body: dict[str, Any], *, withhold: int = 0) -> None:
        """Send a call; the last `withhold` bytes of its body are left out."""
        data = json.dumps(body).encode()
        head_lines = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.token()}\r\n"
        head_lines += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head_lines.encode() + data[: len(data) - withhold])
        await self._writer.drain()

    def leave(self, how: How) -> None:
        if how == "reset":
            at_once = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._writer.close()


@asynccontextmanager
async def client_of(door: Door) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("stream", [True, False])
async def test_while_the_engine_thinks(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    how: How,
    stream: bool,
) -> None:
    scripted_engine.answer(never)
    door = await open_door(scripted_engine.url)
    async with client_of(door) as client:
        await client.ask(door, ASK | {"stream": stream})
        engine = (await scripted_engine.asked()).connection
        client.leave(how)
        await engine.gone(within_s=ENGINE_FREE_WITHIN_S)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="client_gone", status="499") == 1
    assert samples.total("gateway_tokens_total", kind="completion") == 0
    assert samples.total("gateway_replica_up") == 1


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("silent", [True, False])
async def test_in_the_middle_of_a_stream(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    how: How,
    silent: bool,
) -> None:
    more = [] if silent else [chunked(chat(" x"))] * 1000
    leave = asyncio.Event()
    scripted_engine.answer(head(), chunked(chat_role()), chunked(chat(" a")), leave, *more, never)
    door = await open_door(scripted_engine.url)
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        await client.reader.readuntil(b'" a"')
        client.leave(how)
        leave.set()
        await (await scripted_engine.asked()).connection.gone(within_s=ENGINE_FREE_WITHIN_S)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="client_gone", status="200") == 1
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") >= 1
    assert samples.total("gateway_usage_missing_total", reason="client_gone") == 1
    assert samples.total("gateway_streams_open") == 0


async def test_running_totals_are_charged_when_the_client_leaves(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = transcript(" a", " b", " c", usage=(7, 3), continuous=True)[:3]
    scripted_engine.answer(head(), *map(chunked, events), never)
    door = await open_door(scripted_engine.url)
    async with client_of(door) as client:
        await client.ask(door, STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        await client.reader.readuntil(b'" b"')
        client.leave("reset")
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2


async def test_before_the_body_is_there_no_engine_is_asked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    async with client_of(door) as client:
        await client.ask(door, ASK, withhold=5)
        client.leave("reset")
    await door.until(lambda s: s.total("gateway_requests_total", outcome="client_gone", status="499") == 1)
    assert scripted_engine.requests == []


async def test_a_half_closed_client_counts_as_gone(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(never)
    door = await open_door(scripted_engine.url)
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    client = RawClient(reader, writer)
    await client.ask(door, STREAM)
    engine = (await scripted_engine.asked()).connection
    writer.write_eof()
    await engine.gone(within_s=ENGINE_FREE_WITHIN_S)
    assert (await door.idle()).total("gateway_requests_total", outcome="client_gone") == 1
    writer.close()


async def test_no_other_replica_is_tried_for_a_client_that_left(open_door: OpenDoor, scripted_engines: Any) -> None:
    first, second = await scripted_engines(), await scripted_engines()
    for engine in (first, second):
        engine.default = _hang
    door = await open_door(first.url, second.url)
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        async with asyncio.timeout(5):
            while not first.requests + second.requests:
                await asyncio.sleep(0)
        client.leave("reset")
    await door.idle()
    assert len(first.requests + second.requests) == 1


async def test_a_limit_is_free_again_after_clients_left(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    rules = [{"name": "two", "per": ["key"], "concurrent": 2}]
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": rules}})
    for _ in range(5):
        scripted_engine.answer(never)
        scripted_engine.answer(never)
        async with client_of(door) as one, client_of(door) as two:
            asked = len(scripted_engine.requests)
            await one.ask(door, STREAM)
            await two.ask(door, ASK)
            await scripted_engine.asked(asked + 2)
            one.leave("reset")
            two.leave("fin")
        await door.idle()
    assert (await asyncio.gather(door.post(CHAT, ASK), door.post(CHAT, STREAM)))[1].status == 200


async def _hang(_request: Any, connection: Any) -> None:
    await connection.closed.wait()


async def test_before_an_engine_took_the_connection_nothing_is_charged(open_door: OpenDoor) -> None:
    with nobody_accepts() as url:
        door = await open_door(url)
        async with client_of(door) as client:
            await client.ask(door, STREAM)
            await door.until(lambda samples: samples.total("gateway_replica_in_flight") == 1)
            client.leave("fin")
            samples = await door.idle()
    assert samples.total("gateway_tokens_total") == 0
