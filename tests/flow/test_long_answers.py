"""Answers that take as long as they may: no limit, timer or life of anything else ends them before."""

import asyncio
import json
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, never
from tests.envelope import error_of
from tests.leaping import leaping
from tests.raw_client import raw_client
from tests.transcripts import LAST_CHUNK, answer, chat, chat_role, chunked, head, http, transcript

pytestmark = pytest.mark.loops("leaping")

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}
WHOLE = answer("chat", "Hello", usage=(3, 1))
# What is left at its defaults here: 600 s to a whole answer, 120 s to a first event, 60 s between events.
ANSWER_S, FIRST_BYTE_S, IDLE_S = 600, 120, 60
ONE_AT_A_TIME = {"plans": {"standard": [{"name": "one", "per": ["key"], "concurrent": 1}]}}
HOUR_S = 3600


def call_of(door: Door, ask: dict[str, Any], *, ttl_s: float = 30) -> bytes:
    """Return a call whose token is soon of no use any more."""
    body = json.dumps(ask).encode()
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {door.token(ttl_s=ttl_s)}\r\n"
    return f"{fields}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_a_whole_answer_may_take_ten_minutes(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    """Its token has expired since, its slot is still its own, and its connection carries the next call."""
    loop, clock = leaping()
    finished = asyncio.Event()
    scripted_engine.answer(finished, http(WHOLE))
    door = await open_door(scripted_engine.url, clock=clock, limits=ONE_AT_A_TIME)
    async with raw_client(door.port) as client, raw_client(door.port) as other:
        await client.send(call_of(door, ASK))
        engine = (await scripted_engine.asked()).connection
        await loop.leap(ANSWER_S - 1)
        assert not engine.closed.is_set()
        error_of(await other.ask(call_of(door, ASK, ttl_s=HOUR_S)), 429, "rate_limit_exceeded", "concurrency")
        finished.set()
        assert (await client.answer()).body == WHOLE
        assert (await client.ask(call_of(door, ASK, ttl_s=HOUR_S))).status == 200
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="ok", status="200") == 2
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 3


async def test_a_whole_answer_that_takes_longer_is_given_up(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    loop, clock = leaping()
    scripted_engine.answer(never)
    door = await open_door(scripted_engine.url, clock=clock)
    async with raw_client(door.port) as client:
        await client.send(call_of(door, ASK))
        engine = (await scripted_engine.asked()).connection
        await loop.leap(ANSWER_S + 1)
        error_of(await client.answer(), 502, "upstream_timeout", "upstream_error")
        await engine.gone(within_s=PROMPTLY_S)


async def test_a_stream_may_take_an_hour(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    """Its engine thinks for almost two minutes, then says a word each almost minute."""
    loop, clock = leaping()
    events = transcript(*["x"] * (HOUR_S // IDLE_S))
    gates = [asyncio.Event() for _ in events]
    steps = [step for gate, event in zip(gates, events, strict=True) for step in (gate, chunked(event))]
    scripted_engine.answer(head(), *steps, LAST_CHUNK)
    door = await open_door(scripted_engine.url, clock=clock, limits=ONE_AT_A_TIME)
    async with raw_client(door.port) as client:
        await client.send(call_of(door, STREAM))
        await scripted_engine.asked()
        await loop.leap(FIRST_BYTE_S - IDLE_S)
        for gate in gates:
            await loop.leap(IDLE_S - 1)
            gate.set()
        assert (await client.answer()).body == b"".join(events)
    assert (await door.idle()).total("gateway_requests_total", outcome="ok", status="200") == 1


async def test_a_stream_that_is_silent_for_longer_is_cut(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    loop, clock = leaping()
    scripted_engine.answer(head(), chunked(chat_role() + chat(" a")), never)
    door = await open_door(scripted_engine.url, clock=clock)
    async with raw_client(door.port) as client:
        await client.send(call_of(door, STREAM))
        engine = (await scripted_engine.asked()).connection
        await client.until(chat(" a"))
        await loop.leap(IDLE_S + 1)
        await engine.gone(within_s=PROMPTLY_S)
        assert b"upstream_timeout" in await client.until(LAST_CHUNK)
