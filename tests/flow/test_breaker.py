"""Faults of calls hold further calls back from a replica, and full engines are given the time that they ask for."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, Step, close, never, reset
from tests.envelope import SERVER_ERROR, error_of
from tests.identity_provider import SetClock
from tests.leaping import leaping
from tests.transcripts import answer, chat_role, chunked, dumps, error_event, head, http, sse, transcript

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
WHOLE = answer("chat", "Hello", usage=(3, 1))
NO = dumps({"error": {"message": "no"}})
WRONG = http(NO, status="400 Bad Request")
FAILS = http(b"", status="500 Internal Server Error")
FULL = http(b"", status="503 Service Unavailable", headers=[("retry-after", "7")])
FAULTS = 3


@pytest.fixture
def clock() -> SetClock:
    return SetClock(time=SystemClock().now())


async def door_to(open_door: OpenDoor, clock: SetClock, *engines: ScriptedEngine, **pool: Any) -> Door:
    """Open a gateway that asks the first of these before the others."""
    replicas = [{"url": engine.url, "weight": 10.0**-number} for number, engine in enumerate(engines)]
    breaker = {"failures": FAULTS, "window": "30s", "open_for": "10s"}
    pool = {"replicas": replicas, "breaker": breaker, "slow_start": "0s"} | pool
    return await open_door(clock=clock, pools={"main": pool})


async def ask(door: Door, *, stream: bool = False) -> int:
    return (await door.post(CHAT, ASK | {"stream": stream})).status


async def is_open(door: Door, engine: ScriptedEngine) -> bool:
    return (await door.metrics()).total("gateway_breaker_open", replica=f"127.0.0.1:{engine.port}") == 1


async def opened(door: Door, engine: ScriptedEngine) -> None:
    """Let `engine` fail calls until its breaker opens."""
    for _ in range(FAULTS):
        engine.answer(FAILS)
        assert await ask(door) == 200
    assert await is_open(door, engine)


ILL: dict[str, tuple[bool, tuple[Step, ...]]] = {
    "an error of its own": (False, (FAILS,)),
    "a reset within the head": (False, (b"HTTP/1.1 200 OK\r\nconte", reset)),
    "not HTTP": (False, (b"\x16\x03\x01 not HTTP\r\n\r\n", close)),
    "not an answer": (False, (http(b"It works!"),)),
    "an error in place of the first event": (True, (sse([error_event()]),)),
    "a stream that breaks off": (True, (head(), chunked(chat_role()), reset)),
    "a stream that ends too early": (True, (sse([chat_role()]),)),
    "an error inside a stream": (True, (sse([*transcript(" Hi")[:2], error_event()]),)),
}


@pytest.mark.parametrize(("stream", "steps"), ILL.values(), ids=ILL)
async def test_faults_open_it_whatever_wrong_calls_come_between_and_one_good_answer_closes_it(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    clock: SetClock,
    caplog: pytest.LogCaptureFixture,
    steps: tuple[Step, ...],
    *,
    stream: bool,
) -> None:
    async def fault() -> int:
        scripted_engine.answer(*steps)
        return await ask(door, stream=stream)

    door = await door_to(open_door, clock, scripted_engine, await scripted_engines())
    await opens_and_closes(door, scripted_engine, clock, caplog, fault, stream=stream)


@pytest.mark.loops("leaping")
async def test_so_does_silence(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    clock: SetClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fault() -> int:
        scripted_engine.answer(never)
        before, call = len(scripted_engine.requests), asyncio.create_task(ask(door))
        await scripted_engine.asked(before + 1)
        await leaping()[0].leap(10.1)
        return await call

    timeouts = {"answer": "10s"}
    door = await door_to(open_door, clock, scripted_engine, await scripted_engines(), timeouts=timeouts)
    await opens_and_closes(door, scripted_engine, clock, caplog, fault, stream=False)


async def opens_and_closes(
    door: Door,
    scripted_engine: ScriptedEngine,
    clock: SetClock,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[], Awaitable[int]],
    *,
    stream: bool,
) -> None:
    """Check that faults open the engine's breaker, though each comes after a wrong call, and a good answer closes it.

    `fault` has a call meet one, and gives the status that its client got.
    """
    for _ in range(FAULTS):
        assert not await is_open(door, scripted_engine)
        scripted_engine.answer(WRONG)
        assert await ask(door) == 400
        assert await fault() == 200
    assert await is_open(door, scripted_engine)
    asked = len(scripted_engine.requests)
    for _ in range(3):
        assert await ask(door, stream=stream) == 200
    assert len(scripted_engine.requests) == asked
    clock.advance(10)
    assert await ask(door, stream=stream) == 200
    assert len(scripted_engine.requests) == asked + 1
    assert not await is_open(door, scripted_engine)
    assert await ask(door, stream=stream) == 200
    assert len(scripted_engine.requests) == asked + 2
    told = [record.getMessage() for record in caplog.records if "breaker" in record.getMessage()]
    assert [message.partition(" is ")[2].partition(";")[0] for message in told] == ["open", "closed"]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429, 503])
async def test_what_does_not_speak_of_illness_neither_opens_nor_closes_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, clock: SetClock, status: int
) -> None:
    second = await scripted_engines()
    door = await door_to(open_door, clock, scripted_engine, second)
    expected = 400 if status in {400, 413, 422} else 200
    for _ in range(2 * FAULTS):
        scripted_engine.answer(http(NO, status=f"{status} X"))
        assert await ask(door) == expected
    assert not await is_open(door, scripted_engine)
    await opened(door, scripted_engine)
    clock.advance(10)
    asked = len(scripted_engine.requests)
    for number in range(2):
        scripted_engine.answer(http(NO, status=f"{status} X"))
        assert await ask(door) == expected
        assert len(scripted_engine.requests) == asked + number + 1
        assert await is_open(door, scripted_engine)


@STREAM
async def test_clients_that_leave_do_not_open_it(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    clock: SetClock,
    *,
    stream: bool,
) -> None:
    door = await door_to(open_door, clock, scripted_engine, await scripted_engines())
    for number in range(2 * FAULTS):
        scripted_engine.answer(*((head(), chunked(chat_role()), never) if stream else (never,)))
        call = asyncio.create_task(ask(door, stream=stream))
        await scripted_engine.asked(number + 1)
        call.cancel()
        await scripted_engine.requests[number].connection.gone(within_s=PROMPTLY_S)
    await door.idle()
    assert not await is_open(door, scripted_engine)


async def test_one_call_decides_while_all_others_go_elsewhere(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, clock: SetClock
) -> None:
    second = await scripted_engines()
    door = await door_to(open_door, clock, scripted_engine, second)
    await opened(door, scripted_engine)
    clock.advance(10)
    finished = asyncio.Event()
    scripted_engine.answer(finished, FAILS)
    deciding = asyncio.create_task(ask(door))
    await scripted_engine.asked(FAULTS + 1)
    for _ in range(3):
        assert await ask(door) == 200
    finished.set()
    assert await deciding == 200
    assert len(scripted_engine.requests) == FAULTS + 1
    assert await is_open(door, scripted_engine)
    clock.advance(9)
    assert await ask(door) == 200
    assert len(scripted_engine.requests) == FAULTS + 1  # open for as long again
    clock.advance(1)
    assert await ask(door) == 200
    assert not await is_open(door, scripted_engine)


async def test_where_all_are_open_all_are_asked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, clock: SetClock
) -> None:
    second = await scripted_engines()
    door = await door_to(open_door, clock, scripted_engine, second)
    for _ in range(2 * FAULTS):
        for engine in (scripted_engine, second):
            engine.answer(reset)
        error_of(await door.post(CHAT, ASK), 502, "upstream_error", "upstream_error")
    assert await is_open(door, scripted_engine)
    assert await is_open(door, second)
    assert await ask(door) == 200
    assert not await is_open(door, scripted_engine)
    assert await is_open(door, second)


@STREAM
async def test_a_full_engine_is_given_the_time_that_it_asks_for(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    clock: SetClock,
    *,
    stream: bool,
) -> None:
    second = await scripted_engines()
    door = await door_to(open_door, clock, scripted_engine, second)
    scripted_engine.answer(FULL)
    for _ in range(3):
        assert await ask(door, stream=stream) == 200
    assert len(scripted_engine.requests) == 1
    second.answer(FULL)
    for _ in range(2):  # the second time without asking anybody
        reply = await door.post(CHAT, ASK | {"stream": stream})
        error_of(reply, 503, "overloaded", SERVER_ERROR)
        assert reply.headers["Retry-After"] == "7"
    assert (len(scripted_engine.requests), len(second.requests)) == (1, 4)
    clock.advance(7)
    assert await ask(door, stream=stream) == 200
    assert len(scripted_engine.requests) == 2


PAST, IN_HALF_A_MINUTE = "Sun, 06 Nov 1994 08:49:37 GMT", "half a minute"  # a date, once the time is known


@STREAM
@pytest.mark.parametrize(
    ("first", "second", "told", "told_later"),
    [
        ((429, "7"), (503, "20"), "7", "4"),
        ((503, "20"), (429, "7"), "7", "4"),
        ((503, IN_HALF_A_MINUTE), (429, "59"), "30", "27"),
        ((429, "59"), (429, IN_HALF_A_MINUTE), "30", "27"),
        ((503, "7000"), (503, "9" * 300), "60", "57"),
        ((429, "40"), (503, None), "5", None),
        ((503, PAST), (503, "40"), "5", None),
        ((429, "0"), (429, "-7"), "5", None),
        ((503, "nan"), (503, "soon"), "5", None),
    ],
)
async def test_what_full_engines_ask_for_is_what_the_client_is_told(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    clock: SetClock,
    first: tuple[int, str | None],
    second: tuple[int, str | None],
    told: str,
    told_later: str | None,
    *,
    stream: bool,
) -> None:
    """`told_later`: three seconds after that, when nobody needs to be asked; None: one of them is, and answers."""
    engines = [scripted_engine, await scripted_engines()]
    for engine, (status, wait) in zip(engines, (first, second), strict=True):
        date = format_datetime(datetime.fromtimestamp(clock.now() + 30, UTC), usegmt=True)
        fields = [] if wait is None else [("retry-after", date if wait == IN_HALF_A_MINUTE else wait)]
        engine.answer(http(NO, status=f"{status} X", headers=fields))
    door = await door_to(open_door, clock, *engines)
    reply = await door.post(CHAT, ASK | {"stream": stream})
    error_of(reply, 503, "overloaded", SERVER_ERROR)
    assert (reply.headers["Retry-After"], reply.headers["Content-Type"]) == (told, "application/json; charset=utf-8")
    clock.advance(3)
    reply = await door.post(CHAT, ASK | {"stream": stream})
    asked = sum(len(engine.requests) for engine in engines)
    if told_later is None:
        assert (reply.status, asked) == (200, 3)
    else:
        assert (reply.status, asked) == (503, 2)
        assert reply.headers["Retry-After"] == told_later


async def test_when_the_retries_are_used_up_the_first_failure_is_answered(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, clock: SetClock
) -> None:
    second = await scripted_engines()
    budget = {"share": 0, "per_second": 0.2}  # two are saved up
    door = await door_to(open_door, clock, scripted_engine, second, retry_budget=budget, breaker=None)
    scripted_engine.default = reset_each
    assert [await ask(door) for _ in range(4)] == [200, 200, 502, 502]
    assert (await door.metrics()).total("gateway_retries_refused_total", pool="main") == 2
    clock.advance(5)
    assert [await ask(door) for _ in range(2)] == [200, 502]
    assert len(second.requests) == 3


async def reset_each(_: object, connection: Any) -> None:
    await reset(connection)
