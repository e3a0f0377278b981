"""A call does not wait for a replica that probes find down, if another is up; one that has begun is left alone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, Step, never, script
from tests.transcripts import LAST_CHUNK, answer, chat_role, chunked, head, http, transcript

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
SICK = script(http(b"", status="503 Service Unavailable"))


async def door_to(open_door: OpenDoor, *engines: ScriptedEngine, **pool: Any) -> Door:
    """Open a gateway that asks the first of these before the others, and looks often whether they are up.

    One failed probe says nothing: where everything stands still for a moment, one of each replica fails.
    """
    replicas = [{"url": engine.url, "weight": 10.0**-number} for number, engine in enumerate(engines)]
    health = {"interval": "100ms", "unhealthy_after": 2}
    return await open_door(pools={"main": {"replicas": replicas, "health": health} | pool})


async def down(door: Door, engine: ScriptedEngine) -> None:
    """Let probes find `engine` down."""
    engine.probe = SICK
    await door.until(lambda s: s.total("gateway_replica_up", replica=f"127.0.0.1:{engine.port}") == 0)


@pytest.mark.parametrize(
    ("steps", "stream"),
    [((never,), False), ((never,), True), ((head(), chunked(b": queued\n\n"), never), True)],
    ids=["whole", "stream", "a head and a comment"],
)
async def test_another_replica_answers_at_once(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    steps: tuple[Step, ...],
    *,
    stream: bool,
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(*steps)
    door = await door_to(open_door, scripted_engine, second)
    calling = asyncio.create_task(door.post(CHAT, ASK | {"stream": stream}))
    first = await scripted_engine.asked()
    await down(door, scripted_engine)
    async with asyncio.timeout(PROMPTLY_S):  # the time limits are minutes
        assert (await calling).status == 200
    await first.connection.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="found_down") == 1
    assert samples.total("gateway_upstream_attempts_total") == 2
    assert samples.total("gateway_requests_total", outcome="ok") == 1


@pytest.mark.parametrize("pool", [{}, {"attempts": 1}], ids=["no other is up", "no attempt is left"])
async def test_without_another_it_is_waited_for(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, pool: dict[str, Any]
) -> None:
    finished = asyncio.Event()
    whole = answer("chat", "Hello", usage=(3, 1))
    scripted_engine.answer(finished, http(whole))
    second = await scripted_engines()
    door = await door_to(open_door, scripted_engine, second, **pool)
    if not pool:
        await down(door, second)
    calling = asyncio.create_task(door.post(CHAT, ASK))
    await scripted_engine.asked()
    await down(door, scripted_engine)
    await asyncio.wait({calling}, timeout=0.3)  # three looks at the limits
    finished.set()
    assert (await calling).body == whole


async def test_what_has_begun_is_left_alone(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    finished = asyncio.Event()
    events = transcript(" Hello", " world")
    scripted_engine.answer(head(), chunked(chat_role()), finished, *map(chunked, events[1:]), LAST_CHUNK)
    door = await door_to(open_door, scripted_engine, await scripted_engines())
    calling = asyncio.create_task(door.post(CHAT, ASK | {"stream": True}))
    await scripted_engine.asked()
    await down(door, scripted_engine)
    await asyncio.wait({calling}, timeout=0.3)  # three looks at the limits
    finished.set()
    assert (await calling).body == b"".join(events)
