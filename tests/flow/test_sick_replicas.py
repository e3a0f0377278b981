"""A replica that is sick in any way costs its neighbours nothing: not their calls, not their time, not their probes.

Afterwards it is used again. Where all are down the client is told so, and retries make no storm worse than they may.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backlog import nobody_accepts
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor, Samples
from tests.engines import ScriptedEngine, close, never, plain_answer, reset, script
from tests.envelope import SERVER_ERROR, error_of
from tests.transcripts import head, http

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
OK = http(b"")
FAILS = script(http(b'{"error": {"message": "CUDA"}}', status="500 Internal Server Error"))
LIMIT_S = 0.6  # no call takes as long that has not met the sick replica
FAILURES = 3
EVERY_S = 0.01
PROBED_S = 0.1
POOL: dict[str, Any] = {
    "timeouts": dict.fromkeys(("connect", "first_byte", "answer"), f"{LIMIT_S}s"),
    # After so many, calls have met it first: each waits for the one before, however late a busy machine is.
    "health": {"interval": f"{PROBED_S}s", "unhealthy_after": 4},
    "breaker": {"failures": FAILURES, "window": "30s", "open_for": "500ms"},
    "slow_start": "0s",
}


class Sick:
    """The replica that falls ill; its address stays the same."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.name = f"127.0.0.1:{engine.port}"

    @asynccontextmanager
    async def ill(self, how: str) -> AsyncIterator[None]:
        if how in {"refuses", "blackholes"}:
            await self.engine.close()
            if how == "refuses":
                yield
            else:
                with nobody_accepts(self.engine.port):
                    yield
            await self.engine.start(self.engine.port)
            return
        if how != "fails with a green health":
            self.engine.probe = script(never)
        answers = {
            "hangs": script(never),
            "resets after its head": script(head(), reset),
            "closes at once": script(close),
        }
        self.engine.default = answers.get(how, FAILS)
        yield
        self.engine.default, self.engine.probe = plain_answer, script(OK)


async def call(door: Door, *, stream: bool) -> float:
    """Return how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await door.post(CHAT, ASK | {"stream": stream})).status == 200
    return loop.time() - began


async def calls(door: Door, count: int) -> list[float]:
    """Send streams and whole calls at a steady pace; return how long each took."""
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(count):
            tasks.append(group.create_task(call(door, stream=number % 2 == 0)))
            await asyncio.sleep(EVERY_S)
    return [task.result() for task in tasks]


# What the machine stands still for takes nobody's time.
UNHURRIED = pytest.mark.loops("leaping")
SLOW = ("hangs", "blackholes")
AT_ONCE = ("refuses", "resets after its head", "closes at once", "fails with a green health")


@pytest.mark.parametrize("how", [*SLOW, *AT_ONCE])
@UNHURRIED
async def test_one_sick_replica_costs_its_neighbours_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, how: str
) -> None:
    others = [await scripted_engines() for _ in range(2)]
    sick = Sick(scripted_engine)
    door = await open_door(pools={"main": POOL | {"replicas": [scripted_engine.url, *[one.url for one in others]]}})
    loop = asyncio.get_running_loop()
    await calls(door, 9)
    before = [len(one.probes) for one in others]
    began = loop.time()

    def is_left_alone(samples: Samples) -> bool:
        down = samples.total("gateway_replica_up", replica=sick.name) == 0
        return down or samples.total("gateway_breaker_open", replica=sick.name) == 1

    async with sick.ill(how):
        taken = await calls(door, 40)
        await door.until(is_left_alone)
        all_that_met_it, answered = [
            (await door.metrics()).total("gateway_upstream_attempts_total", replica=sick.name, **result)
            for result in ({}, {"result": "answered"})
        ]
        failed = all_that_met_it - answered
        assert 0 < failed <= (len(taken) / 2 if how in SLOW else 2 * FAILURES)
        assert sum(seconds > LIMIT_S - 0.05 for seconds in taken) <= failed  # nobody waits who did not meet it
        assert max(taken) < 2 * LIMIT_S + 0.5
        if how != "fails with a green health":
            await door.until(lambda samples: samples.total("gateway_replica_up", replica=sick.name) == 0)
            asked, probes = len(sick.engine.requests), len(sick.engine.probes)
            await calls(door, 20)
            assert len(sick.engine.requests) == asked
            if how in {"hangs", "closes at once"}:
                await until(lambda: len(sick.engine.probes) > probes)
        samples = await door.metrics()
        for one, probed in zip(others, before, strict=True):
            assert samples.total("gateway_replica_up", replica=f"127.0.0.1:{one.port}") == 1
            assert len(one.probes) - probed >= (loop.time() - began) / (2 * PROBED_S)
    await door.until(lambda samples: samples.total("gateway_replica_up", replica=sick.name) == 1)
    asked = len(sick.engine.requests)
    async with asyncio.timeout(DEADLINE_S):
        while len(sick.engine.requests) < asked + 3:
            await calls(door, 3)
    assert (await door.idle()).total("gateway_breaker_open") == 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("room", [{}, {"max_in_flight": 20}], ids=["at once", "in turn"])
async def test_engines_that_all_fail_get_no_more_than_the_share_of_retries_besides(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, room: dict[str, int]
) -> None:
    engines = [scripted_engine, *[await scripted_engines() for _ in range(2)]]
    for engine in engines:
        engine.default = FAILS
    budget = {"share": 0.2, "per_second": 0}
    pool = {"replicas": [engine.url for engine in engines], "breaker": None, "retry_budget": budget} | room
    door = await open_door(pools={"main": pool})
    sent, at_once = 300, 60
    for _ in range(sent // at_once):
        replies = await asyncio.gather(*[door.post(CHAT, ASK) for _ in range(at_once)])
        assert {reply.status for reply in replies} == {502}
    asked = sum(len(engine.requests) for engine in engines)
    saved = 20  # what a hundred calls add
    assert sent * 1.2 < asked <= sent * 1.2 + saved  # with three attempts of each call it would be three times as many
    assert (await door.idle()).total("gateway_upstream_attempts_total", result="status") == asked


@UNHURRIED
async def test_where_all_are_down_calls_fail_first_and_are_then_refused_until_one_is_back(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    engines = [scripted_engine, await scripted_engines()]
    by_name = engines[1].url.replace("127.0.0.1", "localhost")
    door = await open_door(pools={"main": POOL | {"replicas": [engines[0].url, by_name]}})
    assert await calls(door, 4)
    for engine in engines:
        await engine.close()
    for stream in (False, True):
        reply = await door.post(CHAT, ASK | {"stream": stream})
        error_of(reply, 502, "upstream_error", "upstream_error")
    await door.until(lambda samples: samples.total("gateway_replica_up") == 0)
    attempts = (await door.metrics()).total("gateway_upstream_attempts_total")
    for stream in (False, True):
        reply = await door.post(CHAT, ASK | {"stream": stream})
        error_of(reply, 503, "no_replica_available", SERVER_ERROR)
        assert (reply.headers["Retry-After"], reply.headers["retry-after-ms"]) == ("5", "5000")
    assert (await door.metrics()).total("gateway_upstream_attempts_total") == attempts
    await engines[1].start(engines[1].port)
    await door.until(lambda samples: samples.total("gateway_replica_up") == 1)
    assert await calls(door, 4)
