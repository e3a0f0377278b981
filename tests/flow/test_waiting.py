"""Calls that wait for a replica to have room: who gets it, who leaves, and what is left behind."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor, Reply, Samples
from tests.engines import Connection, Received, ScriptedEngine, script
from tests.leaping import leaping
from tests.leaving import client_of
from tests.transcripts import answer, http, sse, transcript

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
WHOLE = http(answer("chat", "Hi", usage=(3, 1)))
FULL = http(b"", status="503 Service Unavailable", headers=[("retry-after", "1")])
ILL = script(http(b"", status="503 Service Unavailable"))
PROBED = {"interval": "50ms", "unhealthy_after": 1}
# What the machine stands still for is no time that a probe took, or a call waited.
UNHURRIED = pytest.mark.loops("leaping")
RULES = [{"name": "requests", "per": ["tenant"], "requests": 1000, "window": "1h"}]
PLANS = {"standard": RULES, "gold": RULES, "batch": RULES}


def ask(said: str = "Hi", *, stream: bool = False) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": said}], "max_tokens": 10, "stream": stream}


class Holding:
    """An engine that answers each call when it is told to."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.asked: list[str] = []
        self._held: list[asyncio.Event] = []
        self.breaks = False
        engine.default = self._answer

    async def _answer(self, request: Received, connection: Connection) -> None:
        go_on = asyncio.Event()
        self.asked.append(request.json()["messages"][0]["content"])
        self._held.append(go_on)
        await go_on.wait()
        if self.breaks:
            connection.reset()
            return
        await connection.send(sse(transcript(" a")) if request.json()["stream"] else WHOLE)

    async def has(self, calls: int) -> None:
        """Wait until so many calls were asked in all."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.asked) < calls:
                await asyncio.sleep(0.002)

    def let_go(self, number: int = -1) -> None:
        """Answer the call with this number, counted from 0, or the last one."""
        self._held[number].set()

    async def serve(self, calls: int) -> list[str]:
        """Answer one call after the other until it was so many; return them in their order."""
        for number in range(calls):
            await self.has(number + 1)
            self.let_go(number)
        return self.asked


@pytest.fixture
def holding(scripted_engine: ScriptedEngine) -> Holding:
    return Holding(scripted_engine)


async def bounded(open_door: OpenDoor, *engines: str, most: int = 1, limits: Any = None, **pool: Any) -> Door:
    entry = {"replicas": list(engines), "max_in_flight": most, "slow_start": "0s", "breaker": None} | pool
    return await open_door(pools={"main": entry}, limits={"plans": PLANS} | (limits or {}))


def waiting(calls: int) -> Callable[[Samples], bool]:
    return lambda samples: samples.total("gateway_waiting_calls") == calls


async def in_line(door: Door, *calls: tuple[str, str, str | None], stream: bool = False) -> list[asyncio.Task[Reply]]:
    """Send calls, each once the one before waits: what they say, their tenant and their plan."""
    already = int((await door.metrics()).total("gateway_waiting_calls"))
    tasks = []
    for number, (said, tenant, plan) in enumerate(calls, already + 1):
        token = door.token(tenant=tenant, plan=plan)
        tasks.append(asyncio.create_task(door.post(CHAT, ask(said, stream=stream), token=token)))
        await door.until(waiting(number))
    return tasks


async def busy(door: Door, holding: Holding) -> asyncio.Task[Reply]:
    """Send a call that takes the only slot."""
    first = asyncio.create_task(door.post(CHAT, ask("first")))
    await holding.has(1)
    return first


async def all_is_well(door: Door, *, charged: int) -> Samples:
    """Nobody waits, nothing is under way, and so many calls of the tenant were charged."""
    samples = await door.until(
        lambda s: (
            s.total("gateway_requests_in_flight") == s.total("gateway_replica_in_flight") == 0
            and s.total("gateway_waiting_calls") == 0
        )
    )
    usage = (await door.get("/v1/usage")).json()["data"]
    assert sum(row["calls"] for row in usage) == charged
    return samples


@STREAM
async def test_calls_wait_until_a_replica_has_room(open_door: OpenDoor, holding: Holding, *, stream: bool) -> None:
    door = await bounded(open_door, holding.engine.url)
    first = await busy(door, holding)
    second, third = await in_line(door, ("second", "acme", None), ("third", "acme", None), stream=stream)
    assert holding.asked == ["first"]
    assert await holding.serve(3) == ["first", "second", "third"]
    assert {reply.status for reply in await asyncio.gather(first, second, third)} == {200}
    samples = await all_is_well(door, charged=3)
    assert samples.total("gateway_waiting_seconds_count", pool="main", priority="normal") == 2
    lines = [json.loads(line) for line in await door.logged(3)]
    waited = [line["waited_ms"] for line in lines if line["inference_id"]]
    assert waited[0] is None
    assert all(line["waited_ms"] > line["overhead_ms"] for line in lines[1:3])


async def test_whoever_finds_no_place_is_refused_at_once_and_charged_nothing(
    open_door: OpenDoor, holding: Holding
) -> None:
    door = await bounded(open_door, holding.engine.url, queue={"max_waiting": 1, "max_wait": "20s"})
    first = await busy(door, holding)
    (second,) = await in_line(door, ("second", "acme", None))
    refused = await door.post(CHAT, ask("third"))
    assert (refused.status, refused.error["code"]) == (503, "overloaded")
    assert refused.headers["Retry-After"] == "20"  # nothing has moved, so nobody knows better than the config
    assert await holding.serve(2) == ["first", "second"]
    await asyncio.gather(first, second)
    samples = await all_is_well(door, charged=2)
    assert samples.total("gateway_waiting_refused_total", reason="full") == 1


async def test_a_flood_makes_way_for_another_tenant(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url, queue={"max_waiting": 3, "max_wait": "20s"})
    first = await busy(door, holding)
    flood = await in_line(door, *[(f"flood {number}", "flood", None) for number in range(3)])
    quiet = asyncio.create_task(door.post(CHAT, ask("quiet")))
    assert (await flood[2]).error["code"] == "overloaded"
    assert await holding.serve(4) == ["first", "flood 0", "quiet", "flood 1"]
    assert {reply.status for reply in await asyncio.gather(first, quiet, *flood[:2])} == {200}
    await all_is_well(door, charged=2)


async def test_nobody_waits_where_nobody_may(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url, queue={"max_waiting": 0})
    first = await busy(door, holding)
    assert (await door.post(CHAT, ask())).status == 503
    holding.let_go()
    assert (await first).status == 200


@STREAM
async def test_whoever_waits_too_long_is_refused_and_charged_nothing(
    open_door: OpenDoor, holding: Holding, *, stream: bool
) -> None:
    door = await bounded(open_door, holding.engine.url, queue={"max_wait": "50ms"})
    first = await busy(door, holding)
    refused = await door.post(CHAT, ask(stream=stream))
    assert (refused.status, refused.error["code"]) == (503, "overloaded")
    assert refused.headers["Retry-After"] == "1"
    holding.let_go()
    await first
    samples = await all_is_well(door, charged=1)
    assert samples.total("gateway_waiting_refused_total", pool="main", reason="too_long") == 1
    line = json.loads((await door.logged(2))[0])
    assert (line["status"], line["attempts"], line["overhead_ms"]) == (503, 0, None)
    assert line["waited_ms"] >= 45


@UNHURRIED
async def test_a_deadline_ends_the_wait_in_time(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url, queue={"max_wait": "60s"})
    first = await busy(door, holding)
    async with asyncio.timeout(PROMPTLY_S):
        refused = await door.post(CHAT, ask(), **{"x-request-timeout-ms": "60"})
    assert (refused.status, refused.error["code"]) == (502, "upstream_timeout")
    holding.let_go()
    await first
    samples = await all_is_well(door, charged=1)
    assert samples.total("gateway_waiting_refused_total", reason="deadline") == 1


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_client_that_leaves_has_left_the_queue(open_door: OpenDoor, holding: Holding, how: Any) -> None:
    door = await bounded(open_door, holding.engine.url)
    first = await busy(door, holding)
    async with client_of(door) as client:
        await client.ask(door, ask("leaves"))
        await door.until(waiting(1))
        (after,) = await in_line(door, ("after", "acme", None))
        client.leave(how)
        await door.until(waiting(1))
    assert await holding.serve(2) == ["first", "after"]
    await asyncio.gather(first, after)
    samples = await all_is_well(door, charged=2)
    assert samples.total("gateway_requests_total", outcome="client_gone", status="499") == 1
    assert samples.total("gateway_waiting_refused_total") == 0


@UNHURRIED
async def test_draining_serves_who_waits_and_refuses_them_at_its_end(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url)
    first = await busy(door, holding)
    second, third = await in_line(door, ("second", "acme", None), ("third", "acme", None))
    loop, _ = leaping()
    stopping = asyncio.create_task(door.gateway._pipeline.drain(2.0, asyncio.Event()))
    holding.let_go(0)
    await holding.has(2)
    assert (await first).status == 200
    await loop.leap(2.0)
    await stopping
    assert [(reply.status, reply.error["code"]) for reply in (await second, await third)] == [(503, "draining")] * 2
    samples = await door.idle()
    assert samples.total("gateway_waiting_refused_total", reason="draining") == 1
    assert samples.total("gateway_waiting_calls") == 0


async def test_plans_have_priorities(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url, limits={"priorities": {"gold": "high", "batch": "low"}})
    first = await busy(door, holding)
    calls = [(f"{plan} {number}", plan, plan) for plan in ("batch", "standard", "gold") for number in range(2)]
    later = await in_line(door, *calls)
    samples = await door.metrics()
    assert all(samples.total("gateway_waiting_calls", priority=p) == 2 for p in ("high", "normal", "low"))
    served = await holding.serve(7)
    assert served.index("gold 1") < served.index("standard 1") < served.index("batch 1")
    await asyncio.gather(first, *later)
    await all_is_well(door, charged=1)


@UNHURRIED
async def test_a_replica_that_comes_up_takes_who_waits(
    open_door: OpenDoor, holding: Holding, scripted_engines: MoreEngines
) -> None:
    other = Holding(await scripted_engines())
    other.engine.probe = ILL
    door = await bounded(open_door, holding.engine.url, other.engine.url, health=PROBED)
    await door.until(lambda s: s.total("gateway_replica_up") == 1)
    first = await busy(door, holding)
    (second,) = await in_line(door, ("second", "acme", None))
    other.engine.probe = script(http(b""))
    await other.has(1)
    other.let_go()
    holding.let_go()
    assert {reply.status for reply in await asyncio.gather(first, second)} == {200}
    await all_is_well(door, charged=2)


@UNHURRIED
async def test_nobody_waits_for_a_pool_without_a_replica_that_is_up(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url, health=PROBED)
    first = await busy(door, holding)
    later = await in_line(door, ("second", "acme", None), ("third", "other", None))
    holding.engine.probe = ILL
    for reply in await asyncio.gather(*later):
        assert (reply.status, reply.error["code"]) == (503, "no_replica_available")
    holding.let_go()
    assert (await first).status == 200
    samples = await all_is_well(door, charged=1)
    assert samples.total("gateway_waiting_refused_total", reason="no_replica") == 2


async def test_a_call_that_was_at_a_replica_already_does_not_wait_behind_the_others_again(
    open_door: OpenDoor, holding: Holding, scripted_engines: MoreEngines
) -> None:
    other = Holding(await scripted_engines())
    door = await bounded(open_door, holding.engine.url, other.engine.url)
    calls = [asyncio.create_task(door.post(CHAT, ask("at once"))) for _ in range(2)]
    await asyncio.gather(holding.has(1), other.has(1))
    calls += await in_line(door, *[(f"waits {number}", "acme", None) for number in range(2)])
    holding.breaks = True
    holding.let_go(0)  # its slot is given to the next, and the call waits for the other replica
    await holding.has(2)
    await door.until(waiting(2))
    holding.breaks = False
    assert (await other.serve(3))[:2] == ["at once", "at once"]
    holding.let_go(1)
    assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
    await all_is_well(door, charged=4)


async def test_whoever_waits_outlasts_the_rest_of_an_engine_that_said_it_was_full(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(FULL)
    door = await bounded(open_door, scripted_engine.url, most=5, attempts=1)
    assert (await door.post(CHAT, ask())).status == 503
    scripted_engine.answer(WHOLE)
    replies = await asyncio.gather(*[door.post(CHAT, ask()) for _ in range(8)])
    assert {reply.status for reply in replies} == {200}
    await all_is_well(door, charged=8)


async def test_who_would_wait_for_a_second_replica_needs_a_retry_as_well(
    open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    engines = [await scripted_engines() for _ in range(2)]
    for engine in engines:
        engine.answer(FULL)
        engine.default = script(http(b"", status="503 Service Unavailable"))
    budget = {"share": 0, "per_second": 0.1}  # one is saved up
    door = await bounded(open_door, *[engine.url for engine in engines], most=5, retry_budget=budget)
    replies = [await door.post(CHAT, ask()) for _ in range(4)]  # the first has both, which rest for a second
    assert {reply.status for reply in replies} == {503}
    assert sum(len(engine.requests) for engine in engines) == 5
    samples = await all_is_well(door, charged=0)
    assert samples.total("gateway_retries_refused_total", pool="main") == 3


async def test_a_bound_that_is_raised_lets_in_who_waits(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url)
    first = await busy(door, holding)
    later = await in_line(door, ("second", "acme", None))
    pool = door.gateway._pools["main"]
    pool.configure(pool._entry.model_copy(update={"max_in_flight": None}))
    await holding.has(2)
    assert pool.room is None
    for number in range(2):
        holding.let_go(number)
    assert {reply.status for reply in await asyncio.gather(first, *later)} == {200}


async def test_a_hundred_clients_that_come_and_leave_lose_no_slot(open_door: OpenDoor, holding: Holding) -> None:
    door = await bounded(open_door, holding.engine.url, most=2)
    serving = asyncio.create_task(holding.serve(10_000))

    async def impatient(number: int) -> None:
        async with client_of(door) as client:
            await client.ask(door, ask(f"leaves {number}"))
            await asyncio.sleep(number % 7 * 0.003)
            client.leave("reset")

    async def patient() -> Reply:
        return await door.post(CHAT, ask("stays"))

    results = await asyncio.gather(*[patient() if number % 2 else impatient(number) for number in range(100)])
    assert {reply.status for reply in results if reply is not None} == {200}
    serving.cancel()
    await door.until(lambda s: s.total("gateway_replica_in_flight") == s.total("gateway_waiting_calls") == 0)
