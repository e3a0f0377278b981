"""A whole gateway before a shared store that is slow, away or forgetful, and clients that hang up meanwhile."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, MODEL, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.leaving import client_of
from tests.ports import free_port
from tests.store_proxy import StoreProxy, proxy_before
from tests.store_server import StoreServer
from tests.transcripts import http

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
CLOCK = SystemClock()
State = Literal["stopped", "frozen", "no such name", "down at the start"]
STATES: tuple[State, ...] = ("stopped", "frozen", "no such name", "down at the start")
TIMEOUT_S, AT_ONCE_S = 3.0, 2.0  # the latter also on a machine that stands still for a moment
ABORTS = 2000


@asynccontextmanager
async def opened(
    open_door: OpenDoor, engine: ScriptedEngine, server: StoreServer, *rules: dict[str, Any], **limits: Any
) -> AsyncIterator[tuple[Door, StoreProxy]]:
    """Open a gateway with a proxy before its store."""
    async with proxy_before(server.port) as proxy:
        plans = {"plans": {"standard": list(rules)}}
        door = await open_door(engine.url, limits={"store": proxy.url, "store_timeout": "5s", **plans, **limits})
        yield door, proxy
        await door.gateway.stop()  # while the proxy is there


def connected(server: StoreServer) -> list[str]:
    """Return which connections calls are counted on; those for settings run no scripts."""
    with server.client() as client:
        return [one["id"] for one in client.client_list() if one["cmd"] == "evalsha"]


async def test_of_two_thousand_that_hang_up_while_they_are_reserved_nobody_else_notices(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    chance = random.Random(9)
    key = {"name": "requests", "per": ["key"], "requests": 10_000, "window": "month"}
    entries = {"acme": {"keys": {"few": {"override": {"requests": {"requests": 3}}}}}}

    async def leave(door: Door) -> None:
        await asyncio.sleep(chance.random() * 2.5)
        async with client_of(door) as client:
            await client.ask(door, ASK)
            match chance.randrange(4):
                case 0:  # before anybody answers
                    pass
                case 1:  # reserved, and answered
                    await client.reads(b"\r\n\r\n")
                case _:
                    await asyncio.sleep(chance.random() * 0.12)
            client.leave("reset")

    async with opened(open_door, scripted_engine, store_server, key, tenants=entries) as (door, proxy):
        few = door.token(key="few")
        assert (await door.post(CHAT, ASK)).status == 200
        proxy.delay_s = 0.04  # an answer comes after one to two of it
        before = connected(store_server)
        assert len(before) == 1
        storm = [asyncio.create_task(leave(door)) for _ in range(ABORTS)]
        calls: list[asyncio.Task[Reply]] = []
        while not all(one.done() for one in storm):
            calls.append(asyncio.create_task(door.post(CHAT, ASK, token=few)))
            await asyncio.sleep(0.05)
            assert connected(store_server) == before
        replies = [await call for call in calls]
        await asyncio.gather(*storm)
        assert len(replies) > 20
        assert Counter(reply.status for reply in replies) == {200: 3, 429: len(replies) - 3}
        assert {reply.headers["x-ratelimit-limit-requests"] for reply in replies} == {"3"}
        left = sorted(int(reply.headers["x-ratelimit-remaining-requests"]) for reply in replies)
        assert left == [0] * (len(replies) - 2) + [1, 2]
        samples = await door.idle()
        assert samples.total("gateway_requests_total", status="500") == 0
        assert samples.total("gateway_store_failures_total") == 0
        proxy.delay_s = 0
        reached = len(scripted_engine.requests) - 3
        assert 100 < reached < ABORTS - 100
        assert (await door.post(CHAT, ASK)).headers["x-ratelimit-remaining-requests"] == str(10_000 - reached - 1)


async def test_of_a_hundred_whose_deadline_passes_while_they_are_reserved_nobody_else_notices(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    chance = random.Random(10)
    key = {"name": "requests", "per": ["key"], "requests": 1000, "window": "month"}
    entries = {"acme": {"keys": {"few": {"override": {"requests": {"requests": 3}}}}}}

    async def hurry(door: Door, number: int) -> int:
        await asyncio.sleep(chance.random() * 0.5)
        within_ms = chance.randint(1, 250) if number % 10 else 60_000
        reply = await door.post(CHAT, ASK, **{"x-request-timeout-ms": str(within_ms)})
        return reply.status

    async with opened(open_door, scripted_engine, store_server, key, tenants=entries) as (door, proxy):
        few = door.token(key="few")
        assert (await door.post(CHAT, ASK)).status == 200
        before = connected(store_server)
        assert len(before) == 1
        proxy.delay_s = 0.1
        storm = [asyncio.create_task(hurry(door, number)) for number in range(100)]
        replies = [await door.post(CHAT, ASK, token=few) for _ in range(6)]
        statuses = [await one for one in storm]
        assert set(statuses) == {200, 502}
        assert [reply.status for reply in replies] == [200] * 3 + [429] * 3
        assert {reply.headers["x-ratelimit-limit-requests"] for reply in replies} == {"3"}
        samples = await door.idle()
        assert samples.total("gateway_store_failures_total") == 0
        assert connected(store_server) == before
        proxy.delay_s = 0
        # Those count for which an engine was asked in time, also where their deadline passed there.
        reached = len(scripted_engine.requests) - 3
        most = samples.total("gateway_upstream_attempts_total") - 3
        async with asyncio.timeout(DEADLINE_S):  # what was reserved too late is given back when its answer comes
            while (used := await _used(door)) != (booked := await _booked(door)):
                await asyncio.sleep(0.02)
        assert 1 + statuses.count(200) <= reached <= used == booked <= most < 1 + len(statuses)


async def _used(door: Door) -> int:
    rows = (await door.get_admin(f"/admin/limits/applied?tenant=acme&key=key-1&model={MODEL}")).json()["data"]
    return sum(row["used"] for row in rows if row["rule"] == "requests")


async def _booked(door: Door) -> int:
    rows = (await door.get_admin("/admin/usage?group_by=key")).json()["data"]
    return sum(row["calls"] for row in rows if row["key"] == "key-1")


async def timed(door: Door) -> tuple[float, Reply]:
    began = CLOCK.monotonic()
    reply = await door.post(CHAT, ASK)
    return CLOCK.monotonic() - began, reply


@pytest.mark.parametrize("policy", ["allow", "deny"])
@pytest.mark.parametrize("state", STATES)
async def test_a_store_that_is_away_costs_a_steady_load_its_timeout_once(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, own_store_server: StoreServer, state: State, policy: str
) -> None:
    url = f"redis://no.such.name.invalid:{free_port()}/0" if state == "no such name" else own_store_server.url
    if state == "down at the start":
        own_store_server.stop()
    rule = {"name": "requests", "per": ["key"], "requests": 10**6, "window": "month"}
    limits = {"store": url, "store_timeout": f"{TIMEOUT_S}s", "on_store_failure": policy}
    door = await open_door(scripted_engine.url, limits={**limits, "plans": {"standard": [rule]}})
    if state in ("stopped", "frozen"):
        assert (await door.post(CHAT, ASK)).status == 200
    if state == "stopped":
        own_store_server.stop()
    if state == "frozen":
        own_store_server.freeze()

    calls, later = [asyncio.create_task(timed(door))], []
    while (await door.metrics()).total("gateway_store_failures_total") == 0:
        calls.append(asyncio.create_task(timed(door)))
        await asyncio.sleep(0.02)
    for _ in range(25):
        later.append(asyncio.create_task(timed(door)))
        await asyncio.sleep(0.02)
    ended, waited = [await call for call in [*calls, *later]], len(calls)
    assert {reply.status for _, reply in ended} == {200 if policy == "allow" else 503}
    if policy == "deny":
        assert all("Retry-After" in reply.headers for _, reply in ended)
        assert {reply.error["code"] for _, reply in ended} == {"limits_unavailable"}
    # Those of one timeout wait for it, once; then nobody does.
    assert max(seconds for seconds, _ in ended[:waited]) < 2 * TIMEOUT_S
    assert max(seconds for seconds, _ in ended[waited:]) < AT_ONCE_S
    assert (await door.get_admin("/readyz")).status == (200 if policy == "allow" else 503)
    if state == "no such name":
        await door.gateway.stop()
        return
    own_store_server.thaw() if state == "frozen" else own_store_server.start()
    async with asyncio.timeout(DEADLINE_S):
        while "x-ratelimit-limit-requests" not in (reply := await door.post(CHAT, ASK)).headers:
            await asyncio.sleep(0.02)
    # Of those that went on without the store only the ones are charged that it was sent.
    before = 2 if state == "frozen" else 1
    assert (
        before <= 10**6 - int(reply.headers["x-ratelimit-remaining-requests"]) <= before + waited * (policy == "allow")
    )
    assert (await door.get_admin("/readyz")).status == 200
    await door.gateway.stop()  # while the store is there


async def test_of_a_hundred_calls_whose_replies_are_lost_now_and_then_each_is_charged_once(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer, tmp_path: Path
) -> None:
    chance = random.Random(5)
    rules = [
        {"name": "requests", "per": ["key"], "requests": 1000, "window": "day"},
        {"name": "tokens", "per": ["key"], "tokens": 10**6, "count": "output", "window": "day"},
        {"name": "slots", "per": ["key"], "concurrent": 2},
    ]
    away = {"store_timeout": "50ms", "on_store_failure": "allow", "journal": str(tmp_path)}
    async with opened(open_door, scripted_engine, store_server, *rules, **away) as (door, proxy):
        lost, counted = 0, True
        for _ in range(100):
            if counted and chance.random() < 0.05:
                proxy.lose("swallow")
                lost += 1
            reply = await door.post(CHAT, ASK)
            assert reply.status == 200
            counted = "x-ratelimit-limit-requests" in reply.headers
            await asyncio.sleep(0.01)
        proxy.lose_nothing()
        sent = 101
        async with asyncio.timeout(DEADLINE_S):
            while "x-ratelimit-limit-requests" not in (reply := await door.post(CHAT, ASK)).headers:
                sent += 1
                await asyncio.sleep(0.02)
    assert lost > 1
    # Also those that the store was not asked for, while it was thought to be away, and none twice.
    assert reply.headers["x-ratelimit-remaining-requests"] == str(1000 - sent)
    output = 10**6 - 10 - int(reply.headers["x-ratelimit-remaining-tokens"])
    assert output == (sent - 1) * reply.json()["usage"]["completion_tokens"]


async def test_a_slot_is_free_again_though_the_reply_to_its_release_was_lost_each_time(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    slots = {"name": "slots", "per": ["key"], "concurrent": 2}
    async with opened(open_door, scripted_engine, store_server, slots) as (door, proxy):
        for _ in range(20):
            answered = asyncio.Event()
            scripted_engine.answer(answered, http(b'{"choices":[]}'))
            call = asyncio.create_task(door.post(CHAT, ASK))
            await scripted_engine.asked(len(scripted_engine.requests) + 1)
            proxy.lose("hang up")
            answered.set()
            assert (await call).status == 200
            await asyncio.wait_for(proxy.lost.wait(), DEADLINE_S)
        count, go = len(scripted_engine.requests), asyncio.Event()
        for _ in range(2):
            scripted_engine.answer(go, http(b'{"choices":[]}'))
        calls = [asyncio.create_task(door.post(CHAT, ASK)) for _ in range(2)]
        await scripted_engine.asked(count + 2)
        assert (await door.post(CHAT, ASK)).status == 429
        go.set()
        assert [(await one).status for one in calls] == [200, 200]
