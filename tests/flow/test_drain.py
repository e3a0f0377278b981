"""Stopping: calls under way end well within the drain's time, and visibly after it."""

import asyncio
import json

from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine, never
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
    async with asyncio.timeout(5):
        while (await door.get_admin("/readyz")).status != 503:
            await asyncio.sleep(0.01)
    assert (await door.get_admin("/livez")).status == 200
    go_on.set()
    assert (await reply).body == b"".join(events)
    await stopping


async def test_a_stream_past_the_drains_time_ends_visibly(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    sent = [chat_role(), chat(" a")]
    scripted_engine.answer(head(), *map(chunked, sent), never)
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
