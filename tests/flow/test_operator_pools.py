"""/admin/pools on a running gateway: replicas are drained, added and removed, and no call notices."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, never
from tests.transcripts import chat, chat_role, chunked, head

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
ODD = "a b/\u00fc%2F"
SECRET = "hunter2"
SHUT = {
    "drained": "every replica that is up is drained, by order of operators",
    "removed": "no replica of any pool is up",
}


async def ask(door: Door, method: str, path: str, members: Any = None, **more: Any) -> Reply:
    data = None if members is None else json.dumps(members).encode()
    async with door.session.request(method, f"{door.admin_url}/admin/pools{path}", data=data, **more) as response:
        return Reply(response.status, response.headers, await response.read())


async def order(door: Door, what: str, url: str, **more: Any) -> Any:
    reply = await ask(door, "PUT", "/main/replicas", {"order": what, "url": url, **more})
    assert reply.status == 200, reply.body
    return reply.json()


async def take_back(door: Door, what: str, url: str) -> Reply:
    return await ask(door, "DELETE", "/main/replicas", params={"order": what, "url": url})


async def states(door: Door) -> dict[str, tuple[str, str]]:
    reply = await ask(door, "GET", "/main")
    assert reply.status == 200, reply.body
    return {row["url"]: (row["state"], row["from"]) for row in reply.json()["replicas"]}


async def test_replicas_are_drained_added_and_removed_under_load_and_no_call_fails(
    open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    one, two = await scripted_engines(), await scripted_engines()
    door = await open_door(one.url, pools={"main": {"slow_start": "0s"}})
    seen: list[int] = []
    token = door.token()

    async def call() -> None:
        while True:
            seen.append((await door.post(CHAT, HI, token=token)).status)

    async def some(engine: ScriptedEngine) -> None:
        before = len(engine.requests)
        async with asyncio.timeout(DEADLINE_S):
            while len(engine.requests) < before + 5:
                await asyncio.sleep(0.005)

    callers = [asyncio.create_task(call()) for _ in range(4)]
    try:
        await some(one)
        await order(door, "added", two.url, weight=2, server_name="engine.example", max_in_flight=9)
        await some(two)
        assert two.requests[-1].header("host") == f"engine.example:{two.port}"
        shown = (await ask(door, "GET", "/main")).json()["replicas"]
        assert [row["max_in_flight"] for row in shown] == [None, 9]
        assert (await states(door))[two.url] == ("up", "order")
        assert "warning" not in await order(door, "drained", one.url + "/")  # however it is written
        assert (await states(door))[one.url] == ("drained", "config")
        assert (await door.metrics()).total("gateway_replica_drained", replica=one.url.removeprefix("http://")) == 1
        quiet = len(one.requests)
        await some(two)
        assert len(one.requests) <= quiet + 4
        assert (await take_back(door, "drained", one.url)).status == 200
        await some(one)
        await order(door, "removed", two.url)
        assert list(await states(door)) == [one.url]
        await some(one)
        await order(door, "added", two.url, **{"for": "2s"})
        await some(two)
        async with asyncio.timeout(DEADLINE_S):
            while two.url in await states(door):
                await asyncio.sleep(0.05)
        await some(one)
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    assert set(seen) == {200}


@pytest.mark.parametrize("what", ["drained", "removed"])
async def test_a_stream_under_way_goes_on_and_who_takes_the_last_replica_is_warned(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, what: str
) -> None:
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), never)
    headers = {"Authorization": f"Bearer {door.token()}"}
    told = await order(door, what, "http://127.0.0.1:1/")
    assert told["warning"] == "Pool 'main' has no replica http://127.0.0.1:1 so far."
    assert (await take_back(door, what, "http://127.0.0.1:1")).status == 200
    async with door.session.post(door.url + CHAT, json=HI | {"stream": True}, headers=headers) as stream:
        told = await order(door, what, scripted_engine.url)
        assert told["warning"] == "Pool 'main' has no replica left that takes calls."
        assert [(row["order"], row["in_force"]) for row in told["data"]] == [(what, True)]
        assert b" a" in await stream.content.readuntil(b' a"')
        shown = (await ask(door, "GET", "/main")).json()
        (busy,) = shown["replicas"] if what == "drained" else shown["leaving"]
        assert (busy["url"], busy["in_flight"]) == (scripted_engine.url, 1)
        assert (await door.post(CHAT, HI, token=door.token())).error["code"] == "no_replica_available"
    ready = await door.get_admin("/readyz")
    assert (ready.status, ready.json()["checks"]["pools"]) == (503, SHUT[what])
    undone = await take_back(door, what, scripted_engine.url)
    assert undone.status == 200
    assert (await door.get_admin("/readyz")).status == 200


async def test_a_pool_goes_by_its_name_whatever_is_in_it(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    sections = {"models": {"odd": {"pool": ODD}}, "pools": {ODD: {"replicas": [scripted_engine.url]}}}
    door = await open_door(scripted_engine.url, **sections)
    path = "/" + quote(ODD, safe="")
    members = {"order": "drained", "url": scripted_engine.url}
    url = URL(f"{door.admin_url}/admin/pools{path}/replicas", encoded=True)
    async with door.session.put(url, json=members) as response:
        assert response.status == 200, await response.text()
        assert [row["pool"] for row in (await response.json())["data"]] == [ODD]
    listed = (await ask(door, "GET", "")).json()
    (pool,) = [one for one in listed["data"] if one["name"] == ODD]
    assert ([one["state"] for one in pool["replicas"]], listed["orders"][0]["pool"]) == (["drained"], ODD)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"order": "drained"}, "url"),
        ({"order": "drained", "url": "ftp://a"}, "url"),
        ({"order": "drained", "url": f"http://user:{SECRET}@a:1"}, "url"),
        ({"order": "added", "url": f"http://a:1/?key={SECRET}"}, "url"),
        ({"order": "lost", "url": "http://a:1"}, "order"),
        ({"order": "added", "url": "http://a:1", "weight": 0}, "weight"),
        ({"order": "removed", "url": "http://a:1", "weight": 1}, "weight"),
        ({"order": "removed", "url": "http://a:1", "max_in_flight": 1}, "max_in_flight"),
        ({"order": "added", "url": "http://a:1", "max_in_flight": 1.5}, "max_in_flight"),
        ({"order": "added", "url": "http://a:1", "server_name": "a b"}, "server_name"),
        ({"order": "drained", "url": "http://a:1", "for": "ever"}, "for"),
        ({"order": "drained", "url": "http://a:1", "why": "x"}, "why"),
    ],
)
async def test_what_is_wrong_is_400_shows_no_secret_and_changes_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, members: Any, param: str
) -> None:
    door = await open_door(scripted_engine.url)
    reply = await ask(door, "PUT", "/main/replicas", members)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", param)
    assert SECRET.encode() not in reply.body
    assert (await ask(door, "GET", "")).json()["orders"] == []


async def test_no_such_pool_or_order_is_404_and_a_web_page_changes_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    members = {"order": "drained", "url": scripted_engine.url}
    replies = [
        await ask(door, "GET", "/other"),
        await ask(door, "PUT", "/other/replicas", members),
        await take_back(door, "drained", scripted_engine.url),
    ]
    assert [(reply.status, reply.error["code"]) for reply in replies] == [(404, "not_found")] * 3
    for method, body, query in [("PUT", members, None), ("DELETE", None, members)]:
        reply = await ask(door, method, "/main/replicas", body, params=query, headers={"Origin": door.admin_url})
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
    assert (await states(door))[scripted_engine.url] == ("up", "config")
