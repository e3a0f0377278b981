"""An answer that is not streamed and whose client left is charged what its replica generates in such a time."""

import asyncio
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import Door, OpenDoor
from tests.engines import ScriptedEngine, never
from tests.leaping import leaping
from tests.leaving import client_of
from tests.transcripts import LAST_CHUNK, answer, chunked, head, http, transcript

pytestmark = pytest.mark.loops("leaping")

RESERVED = 500
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": RESERVED}
TOKENS, SECONDS = 400, 10.0  # of an answer that tells them
PACE = TOKENS / SECONDS


async def answered(door: Door, engine: ScriptedEngine, *, stream: bool = False) -> None:
    """Let the replica answer at its pace."""
    loop, _ = leaping()
    finished, before = asyncio.Event(), len(engine.requests)
    events = transcript(" Hello", usage=(3, TOKENS))
    whole = http(answer("chat", "Hello", usage=(3, TOKENS)))
    engine.answer(finished, *([head(), *map(chunked, events), LAST_CHUNK] if stream else [whole]))
    async with client_of(door) as client:
        await client.ask(door, ASK | {"stream": stream})
        await engine.asked(before + 1)
        await loop.leap(SECONDS)
        finished.set()
        await client.reads(b"data: [DONE]" if stream else b"system_fingerprint")
        await door.idle()


async def left(door: Door, engine: ScriptedEngine, after_s: float, **ask: Any) -> float:
    """Let a client leave so late; return how many output tokens it was charged."""
    loop, _ = leaping()
    charged, asked = (await door.metrics()).total("gateway_tokens_total", kind="completion"), len(engine.requests)
    engine.answer(never)
    async with client_of(door) as client:
        await client.ask(door, ASK | ask)
        await engine.asked(asked + 1)
        await loop.leap(after_s)
        client.leave("reset")
        await engine.requests[-1].connection.gone(within_s=PROMPTLY_S)
        samples = await door.idle()
    return samples.total("gateway_tokens_total", kind="completion") - charged


async def opened(open_door: OpenDoor, engine: ScriptedEngine) -> Door:
    _, clock = leaping()
    return await open_door(engine.url, clock=clock)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_it_is_charged_by_the_pace_of_answers_before(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    door = await opened(open_door, scripted_engine)
    await answered(door, scripted_engine, stream=stream)
    assert await left(door, scripted_engine, 5.0) == pytest.approx(5.0 * PACE, rel=0.05)
    samples = await door.metrics()
    assert samples.total("gateway_usage_missing_total", reason="client_gone") == 1
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") > 0


async def test_it_is_charged_what_was_reserved_at_most(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await opened(open_door, scripted_engine)
    await answered(door, scripted_engine)
    assert await left(door, scripted_engine, 60.0) == RESERVED
    assert await left(door, scripted_engine, 60.0, n=2) == 2 * RESERVED


async def test_each_of_its_choices_has_the_pace(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await opened(open_door, scripted_engine)
    await answered(door, scripted_engine)
    assert await left(door, scripted_engine, 5.0, n=2) == pytest.approx(2 * 5.0 * PACE, rel=0.05)


async def test_of_a_replica_that_has_answered_nothing_yet_it_is_charged_no_output(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine)
    assert await left(door, scripted_engine, 5.0) == 0


async def test_a_stream_whose_client_left_before_its_first_event_is_charged_no_output(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine)
    await answered(door, scripted_engine)
    assert await left(door, scripted_engine, 5.0, stream=True) == 0
