"""Which engine is asked, by each balance: real calls, real engines, and one that dies between two calls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor
from tests.engines import ScriptedEngine, reset, script
from tests.load import until
from tests.transcripts import answer, http

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
REPLICAS = 4
ANSWER = http(answer("chat", "Hi", usage=(3, 1)))


@pytest.fixture
async def engines(scripted_engines: MoreEngines) -> list[ScriptedEngine]:
    return [await scripted_engines() for _ in range(REPLICAS)]


async def opened(open_door: OpenDoor, engines: list[ScriptedEngine], balance: str) -> Door:
    replicas = [engine.url for engine in engines]
    return await open_door(pools={"main": {"replicas": replicas, "balance": balance, "attempts": REPLICAS}})


def conversation(number: int, turns: int) -> dict[str, Any]:
    said = [("user", f"Question {number}")]
    for turn in range(turns - 1):
        said += [("assistant", "So it is."), ("user", f"And {turn}?")]
    messages = [{"role": "system", "content": "Be terse."}, *({"role": who, "content": what} for who, what in said)]
    return {"model": "tiny", "messages": messages, "max_tokens": 5}


async def asked_by(door: Door, engines: list[ScriptedEngine], body: dict[str, Any], **options: Any) -> int:
    """Send a call and return which engine answered it."""
    before = [len(engine.requests) for engine in engines]
    reply = await door.post(COMPLETIONS if "prompt" in body else CHAT, body, **options)
    assert reply.status == 200
    (asked,) = [at for at, engine in enumerate(engines) if len(engine.requests) > before[at]]
    return asked


async def all_asked(engines: list[ScriptedEngine], calls: int) -> None:
    """Wait until so many calls have come to the engines, together."""
    await until(lambda: sum(len(engine.requests) for engine in engines) >= calls)


async def test_least_requests_asks_whom_nobody_asks(open_door: OpenDoor, engines: list[ScriptedEngine]) -> None:
    door = await opened(open_door, engines, "least_requests")
    gate = asyncio.Event()
    for engine in engines:
        engine.answer(gate, ANSWER)
    calls = [asyncio.create_task(door.post(CHAT, conversation(1, 1))) for _ in engines]
    await all_asked(engines, REPLICAS)
    assert [len(engine.requests) for engine in engines] == [1] * REPLICAS
    gate.set()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * REPLICAS


def told(running: float, waiting: float) -> bytes:
    return f"vllm:num_requests_running 0{running}\nvllm:num_requests_waiting{{}} {waiting}\n".encode()


async def test_least_load_goes_around_engines_that_others_keep_busy(
    open_door: OpenDoor, engines: list[ScriptedEngine]
) -> None:
    for engine in engines:
        engine.probe = script(http(told(20, 5)))
    engines[2].probe = script(http(told(1, 0)))
    replicas = [{"url": engine.url} for engine in engines]
    load = {"interval": "50ms", "path": "/load"}
    door = await open_door(pools={"main": {"replicas": replicas, "balance": "least_load", "load": load}})
    await door.until(lambda samples: samples.total("gateway_engine_calls", state="waiting") == 15)
    assert {await asked_by(door, engines, conversation(number, 1)) for number in range(5)} == {2}
    assert {probe.target for probe in engines[0].probes} == {"/health", "/load"}
    # Who says nothing any more is taken for as busy as his calls from here.
    engines[2].probe = script(http(told(90, 0)))
    engines[1].probe = script(http(b"", status="404 Not Found"))
    await door.until(lambda samples: samples.total("gateway_engine_calls", state="waiting") == 10)
    assert {await asked_by(door, engines, conversation(number, 1)) for number in range(5)} == {1}


async def test_round_robin_asks_each_in_its_turn(open_door: OpenDoor, engines: list[ScriptedEngine]) -> None:
    door = await opened(open_door, engines, "round_robin")
    asked = [await asked_by(door, engines, conversation(1, 1)) for _ in range(3 * REPLICAS)]
    assert sorted(asked[:REPLICAS]) == list(range(REPLICAS))
    assert asked == asked[:REPLICAS] * 3


async def test_prefix_affinity_asks_the_replica_that_had_the_conversation(
    open_door: OpenDoor, engines: list[ScriptedEngine]
) -> None:
    first, second = [await opened(open_door, engines, "prefix_affinity") for _ in range(2)]
    homes = [await asked_by(first, engines, conversation(number, 1)) for number in range(24)]
    assert len(set(homes)) > 1
    for turns, door in ((2, first), (3, second)):
        assert [await asked_by(door, engines, conversation(number, turns)) for number in range(24)] == homes


async def test_a_prompts_beginning_and_a_session_lead_to_one_replica_too(
    open_door: OpenDoor, engines: list[ScriptedEngine]
) -> None:
    door = await opened(open_door, engines, "prefix_affinity")
    prompt = "Few shots. " * 500
    ends = [{"model": "acme/tiny", "prompt": f"{prompt}{end}"} for end in range(6)]
    assert len({await asked_by(door, engines, body) for body in ends}) == 1
    sessions = [conversation(number, 1) | {"prompt_cache_key": "s"} for number in range(6)]
    assert len({await asked_by(door, engines, body) for body in sessions}) == 1


async def test_tenants_are_not_led_to_each_others_prompts(open_door: OpenDoor, engines: list[ScriptedEngine]) -> None:
    door = await opened(open_door, engines, "prefix_affinity")
    asked = [await asked_by(door, engines, conversation(1, 1), token=door.token(tenant=f"t{i}")) for i in range(24)]
    assert len(set(asked)) > 1


async def test_a_hot_prefix_spills_over_while_its_replica_is_full(
    open_door: OpenDoor, engines: list[ScriptedEngine]
) -> None:
    door = await opened(open_door, engines, "prefix_affinity")
    home = await asked_by(door, engines, conversation(1, 1))
    gate = asyncio.Event()
    for engine in engines:
        for _ in range(3):
            engine.answer(gate, ANSWER)
    calls = [asyncio.create_task(door.post(CHAT, conversation(1, 1))) for _ in range(2 * REPLICAS)]
    await all_asked(engines, 1 + 2 * REPLICAS)
    assert max(len(engine.requests) for engine in engines) <= 4  # one before, and 1.25 times its share, rounded up
    assert all(engine.requests for engine in engines)
    gate.set()
    assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
    await door.idle()
    assert await asked_by(door, engines, conversation(1, 1)) == home


@pytest.mark.parametrize("balance", ["least_requests", "round_robin", "prefix_affinity"])
async def test_a_call_is_tried_at_each_replica_once(
    open_door: OpenDoor, engines: list[ScriptedEngine], balance: str
) -> None:
    door = await opened(open_door, engines, balance)
    for engine in engines:
        engine.answer(reset)
    assert (await door.post(CHAT, conversation(1, 1))).status == 502
    assert [len(engine.requests) for engine in engines] == [1] * REPLICAS


async def test_where_a_replica_fails_its_conversations_go_to_one_other(
    open_door: OpenDoor, engines: list[ScriptedEngine]
) -> None:
    door = await opened(open_door, engines, "prefix_affinity")
    home = await asked_by(door, engines, conversation(1, 1))
    others = [engine for engine in engines if engine is not engines[home]]
    for _ in range(2):
        engines[home].answer(http(b"{}", status="500 Internal Server Error"))
    nexts = [await asked_by(door, others, conversation(1, turns)) for turns in (2, 3)]
    assert nexts[0] == nexts[1]
    assert await asked_by(door, engines, conversation(1, 4)) == home
