"""Connections that an engine closes while they are idle, in the very moment in which a call is sent: nobody notices."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.relay.upstream import KEEP_IDLE_S
from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, OpenDoor
from tests.engines import Connection, Received, ScriptedEngine, plain_answer
from tests.identity_provider import SetClock
from tests.leaping import leaping
from tests.transcripts import answer, http

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
# What engines keep an idle connection for; each has clients of its own, so that many wait at once.
KEPT_S, ENGINES, CALLS = 0.03, 10, 50
UVICORN_KEEPS_S = 5.0
LARGE = http(answer("chat", "x" * 5_000_000, usage=(3, 1)))


def ask(said: str, *, model: str = "tiny", stream: bool = False) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": said}], "stream": stream}


class Hasty:
    """Keeps no connection: it closes each that was idle for `KEPT_S`, or when the next call's first byte is there."""

    def __init__(self, engine: ScriptedEngine, chance: random.Random) -> None:
        self.unread = 0  # calls that were on their way
        self._chance = chance
        self._timers: dict[int, asyncio.TimerHandle] = {}
        engine.default = self._answer

    async def _answer(self, request: Received, connection: Connection) -> None:
        if connection.id in self._timers:
            self._timers.pop(connection.id).cancel()
        await plain_answer(request, connection)
        if self._chance.random() < 0.3:
            await connection.next_byte()
            self._close(connection)
            return
        loop = asyncio.get_running_loop()
        self._timers[connection.id] = loop.call_later(KEPT_S, self._close, connection)

    def _close(self, connection: Connection) -> None:
        if connection.id in self._timers and connection.busy:
            return
        self.unread += bool(connection._received)
        connection._received.clear()  # not read any more
        connection.close()


async def test_no_client_notices_that_engines_close_connections_as_calls_are_sent(
    open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    engines = [await scripted_engines() for _ in range(ENGINES)]
    hasty = [Hasty(engine, random.Random(number)) for number, engine in enumerate(engines)]
    pools = {f"p{number}": {"replicas": [engine.url], "attempts": 1} for number, engine in enumerate(engines)}
    models = {f"m{number}": {"pool": f"p{number}"} for number in range(ENGINES)}
    door = await open_door(engines[0].url, models=models, pools=pools)

    async def calls(number: int) -> None:
        chance = random.Random(number)
        for call in range(CALLS):
            body = ask(f"{number}/{call}", model=f"m{number}", stream=call % 2 == 0)
            reply = await door.post(CHAT, body)
            assert (reply.status, b"Hello" in reply.body) == (200, True)
            await asyncio.sleep(KEPT_S * chance.uniform(0.9, 1.1))

    async with asyncio.TaskGroup() as clients:
        for number in range(ENGINES):
            clients.create_task(calls(number))
    said = [request.json()["messages"][0]["content"] for engine in engines for request in engine.requests]
    assert sorted(said) == sorted(f"{number}/{call}" for number in range(ENGINES) for call in range(CALLS))
    assert sum(one.unread for one in hasty) > ENGINES * CALLS / 5
    samples = await door.idle()
    answered = samples.total("gateway_upstream_attempts_total", result="answered")
    assert samples.total("gateway_upstream_attempts_total") == answered == ENGINES * CALLS
    assert samples.total("gateway_breaker_open") == 0


@pytest.mark.loops("leaping")
async def test_a_connection_is_used_again_after_a_large_answer_and_a_silence_and_for_less_than_engines_keep_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    loop, _ = leaping()
    clock = SetClock(time=SystemClock().now())
    idle_s = 0.1  # a limit for silence within an answer, and none for what comes after it
    pools = {"main": {"timeouts": {"idle": f"{idle_s}s"}}}
    door = await open_door(scripted_engine.url, pools=pools, clock=clock)
    for stream in (False, True):
        scripted_engine.answer(LARGE)
        assert len((await door.post(CHAT, ask("Hi"))).body) > 5_000_000
        await loop.leap(5 * idle_s)
        assert (await door.post(CHAT, ask("Hi", stream=stream))).status == 200
    first = scripted_engine.requests[0].connection
    assert {request.connection for request in scripted_engine.requests} == {first}
    clock.advance(KEEP_IDLE_S - 0.1)
    assert (await door.post(CHAT, ask("Hi"))).status == 200
    assert scripted_engine.requests[-1].connection is first
    clock.advance(KEEP_IDLE_S)
    assert (await door.post(CHAT, ask("Hi"))).status == 200
    assert scripted_engine.requests[-1].connection is not first
    await first.gone(within_s=PROMPTLY_S)
    assert KEEP_IDLE_S < UVICORN_KEEPS_S
