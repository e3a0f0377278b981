"""Time limits, each for what it is: none cuts an answer that goes on, and every silence ends."""

import asyncio
from typing import Any

import pytest

from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Connection, ScriptedEngine, Step, never
from tests.envelope import error_of
from tests.event_source import error_at_end
from tests.transcripts import LAST_CHUNK, answer, chat, chat_role, chunked, head, http, transcript

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}
# Below what nobody would wait for, above what a busy machine may stall for; time limits are looked at every 0.1 s.
SHORT_S = 0.5
PIECE_S = 0.1
PING = chunked(b": ping\n\n")


async def opened(open_door: OpenDoor, engine: ScriptedEngine, **timeouts: str) -> Door:
    """Open a gateway with short limits but for those that are given, and room for one call at a time."""
    short = dict.fromkeys(("first_byte", "idle", "answer"), f"{SHORT_S * 1000:g}ms")
    rules = [{"name": "one", "per": ["key"], "concurrent": 1}]
    return await open_door(
        engine.url, pools={"main": {"timeouts": short | timeouts}}, limits={"plans": {"standard": rules}}
    )


def paced(*pieces: bytes) -> Step:
    """Step: send these, one every tenth of a second."""

    async def step(connection: Connection) -> None:
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(PIECE_S)

    return step


async def test_a_stream_that_goes_on_outlives_every_limit(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    events = transcript(*"abcdefghijkl")
    scripted_engine.answer(head(), paced(*map(chunked, events)), LAST_CHUNK)
    door = await opened(open_door, scripted_engine)
    started = asyncio.get_running_loop().time()
    assert (await door.post(CHAT, STREAM)).body == b"".join(events)
    assert asyncio.get_running_loop().time() - started > 2 * SHORT_S
    assert (await door.idle()).total("gateway_requests_total", outcome="ok") == 1


async def test_a_silence_after_the_first_event_ends_the_answer_and_frees_everything(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = [chat_role(), chat(" a")]
    scripted_engine.answer(head(), *map(chunked, events), never)
    door = await opened(open_door, scripted_engine, first_byte="60s", answer="60s")
    reply = await door.post(CHAT, STREAM)
    assert reply.body.startswith(b"".join(events))
    assert error_at_end(reply.body)["code"] == "upstream_timeout"
    await scripted_engine.requests[0].connection.gone(within_s=1)
    assert (await door.post(CHAT, STREAM)).status == 200  # the slot is free
    assert (await door.idle()).total("gateway_tokens_total", kind="completion", source="estimated") == 1


async def test_comments_keep_an_answer_that_began(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    events = transcript(" a", " b")
    pings = [PING] * round(2.5 * SHORT_S / PIECE_S)
    scripted_engine.answer(head(), chunked(events[0]), paced(*pings), *map(chunked, events[1:]), LAST_CHUNK)
    door = await opened(open_door, scripted_engine, first_byte="60s", answer="60s")
    reply = await door.post(CHAT, STREAM)
    assert reply.body == events[0] + b": ping\n\n" * len(pings) + b"".join(events[1:])


async def test_comments_are_no_beginning(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(), paced(*[PING] * 20), never)
    door = await opened(open_door, scripted_engine, idle="3s", answer="60s")
    started = asyncio.get_running_loop().time()
    error_of(await door.post(CHAT, STREAM), 502, "upstream_timeout", "upstream_error")
    assert asyncio.get_running_loop().time() - started < 20 * PIECE_S
    await scripted_engine.requests[0].connection.gone(within_s=1)
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="first_byte_timeout") == 1
    assert samples.total("gateway_tokens_total") == 0
    assert (await door.post(CHAT, STREAM)).status == 200


@pytest.mark.parametrize("headed", [False, True], ids=["nothing", "a head"])
async def test_a_stream_may_queue_as_long_as_its_first_event_may_take(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, headed: bool
) -> None:
    events = [head(), *map(chunked, transcript(" a")), LAST_CHUNK]
    first, rest = (events[:1], events[1:]) if headed else ([], events)
    scripted_engine.answer(*first, paced(*[b""] * round(2.5 * SHORT_S / PIECE_S)), *rest)
    door = await opened(open_door, scripted_engine, first_byte="60s")
    assert (await door.post(CHAT, STREAM)).body.endswith(b"data: [DONE]\n\n")


async def test_an_answer_that_is_not_streamed_has_a_limit_of_its_own(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    body = answer("chat", "Hi", usage=(3, 1))
    wait = paced(*[b""] * round(2.5 * SHORT_S / PIECE_S))
    scripted_engine.answer(wait, http(body))
    door = await opened(open_door, scripted_engine, answer="60s")
    assert (await door.post(CHAT, ASK)).body == body
    scripted_engine.answer(http(body)[:-1], never)  # it began, and then silence is one
    error_of(await door.post(CHAT, ASK), 502, "upstream_timeout", "upstream_error")


async def test_an_answer_that_is_not_streamed_may_take_no_longer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(never)
    door = await opened(open_door, scripted_engine, first_byte="60s", idle="60s")
    error_of(await door.post(CHAT, ASK), 502, "upstream_timeout", "upstream_error")
    await scripted_engine.requests[0].connection.gone(within_s=1)
