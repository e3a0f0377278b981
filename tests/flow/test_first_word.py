"""A client hears nothing before its engine has spoken, and then what counts: another engine's answer, or the truth."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.transcripts import dumps, http

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
STATUSES = pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])


def refusal(status: str) -> bytes:
    body = dumps({"error": {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}})
    return http(body, status=status, headers=[("retry-after", "7")])


async def door_to(open_door: OpenDoor, *engines: ScriptedEngine) -> Door:
    """Open a gateway that asks the first of these before the others."""
    replicas = [{"url": engine.url, "weight": 10.0**-number} for number, engine in enumerate(engines)]
    return await open_door(pools={"main": {"replicas": replicas}})


async def told(door: Door, engine: ScriptedEngine, gate: asyncio.Event, *, stream: bool) -> Reply:
    """Send a call; see that nothing comes of it before its engine speaks."""
    call = asyncio.create_task(door.post(CHAT, ASK | {"stream": stream}))
    await engine.asked()
    _, waiting = await asyncio.wait({call}, timeout=0.2)
    assert waiting, call.result()
    gate.set()
    return await call


@STREAM
@STATUSES
async def test_another_engine_answers_for_one_that_is_full(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, *, stream: bool, status: str
) -> None:
    gate, second = asyncio.Event(), await scripted_engines()
    scripted_engine.answer(gate, refusal(status))
    door = await door_to(open_door, scripted_engine, second)
    reply = await told(door, scripted_engine, gate, stream=stream)
    assert (reply.status, len(second.requests)) == (200, 1)
    assert reply.headers["Content-Type"].startswith("text/event-stream" if stream else "application/json")


@STREAM
@STATUSES
async def test_where_all_are_full_the_client_is_told_when_to_come_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, *, stream: bool, status: str
) -> None:
    gate, second = asyncio.Event(), await scripted_engines()
    scripted_engine.answer(gate, refusal(status))
    second.answer(refusal(status))
    door = await door_to(open_door, scripted_engine, second)
    reply = await told(door, scripted_engine, gate, stream=stream)
    assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (503, "overloaded", "7")
    assert reply.headers["Content-Type"].startswith("application/json")


@STREAM
async def test_an_engines_word_that_the_call_is_wrong_is_passed_on_and_nobody_else_is_asked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, *, stream: bool
) -> None:
    gate, second = asyncio.Event(), await scripted_engines()
    scripted_engine.answer(gate, refusal("400 Bad Request"))
    door = await door_to(open_door, scripted_engine, second)
    reply = await told(door, scripted_engine, gate, stream=stream)
    assert (reply.status, reply.error["message"], reply.error["param"]) == (400, "too long", "messages")
    assert not second.requests
