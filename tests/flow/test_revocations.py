"""/admin/revocations on a running gateway: a revoked token is refused from the next call on."""

import json
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, never
from tests.identity_provider import SetClock
from tests.transcripts import chat, chat_role, chunked, head

HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
# A name that no path could hold.
ODD = "a/../b?c=%2F&d #\u00fc"


class Operator:
    """Who asks the operator's listener of a door."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def ask(self, method: str, members: Any = None, *, headers: Any = None, **query: str) -> Reply:
        data = members if members is None or isinstance(members, bytes) else json.dumps(members).encode()
        url = f"{self.door.admin_url}/admin/revocations"
        async with self.door.session.request(method, url, data=data, params=query, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def shown(self, method: str, members: Any = None, **query: str) -> list[dict[str, Any]]:
        reply = await self.ask(method, members, **query)
        assert reply.status == 200, reply.body
        rows: list[dict[str, Any]] = reply.json()["data"]
        return [{name: value for name, value in row.items() if name != "set_at"} for row in rows]


@pytest.fixture
async def operator(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> Operator:
    return Operator(await open_door(scripted_engine.url))


async def status(door: Door, token: str) -> int:
    return (await door.post(CHAT, HI, token=token)).status


async def test_a_key_is_refused_from_the_next_call_on_and_accepted_again(operator: Operator) -> None:
    door = operator.door
    leaked, other = door.token(key="leaked"), door.token(key="other")
    assert [await status(door, token) for token in (leaked, other)] == [200, 200]
    row = {"tenant": "acme", "key": "leaked", "reason": "on a forum", "until": None, "in_force": True}
    assert await operator.shown("PUT", {"tenant": "acme", "key": "leaked", "reason": "on a forum"}) == [row]
    assert [await status(door, token) for token in (leaked, other)] == [401, 200]
    assert await status(door, door.token(key="leaked", ttl_s=700)) == 401  # a fresh token of the same key
    assert await status(door, door.token(key="leaked", tenant="namesake")) == 200
    assert await operator.shown("GET") == [row]
    assert await operator.shown("DELETE", tenant="acme", key="leaked") == []
    assert [await status(door, token) for token in (leaked, other)] == [200, 200]
    assert (await operator.ask("DELETE", tenant="acme", key="leaked")).status == 404


async def test_one_token_is_refused_by_its_id_and_the_others_of_its_key_are_not(operator: Operator) -> None:
    door = operator.door
    bad, good = door.token_of(jti="bad"), door.token_of(jti="good")
    assert [await status(door, token) for token in (bad, good)] == [200, 200]
    row = {"tenant": "acme", "jti": "bad", "in_force": True}
    (shown,) = await operator.shown("PUT", {"tenant": "acme", "jti": "bad", "for": "1h"})
    assert shown.pop("until").endswith("Z")
    assert shown == row
    assert [await status(door, token) for token in (bad, good, door.token())] == [401, 200, 200]
    assert await status(door, door.token_of(jti="bad", tenant="other")) == 200
    assert await operator.shown("DELETE", tenant="acme", jti="bad") == []
    assert await status(door, bad) == 200


async def test_a_tenant_is_refused_with_all_its_keys_and_no_other(operator: Operator) -> None:
    door = operator.door
    await operator.shown("PUT", {"tenant": ODD})
    tokens = [door.token(tenant=ODD), door.token(tenant=ODD, key="key-2"), door.token()]
    assert [await status(door, token) for token in tokens] == [401, 401, 200]
    await operator.shown("PUT", {"tenant": ODD, "key": ODD})
    assert [row.get("key") for row in await operator.shown("GET", tenant=ODD)] == [None, ODD]
    await operator.shown("DELETE", tenant=ODD)
    tokens = [door.token(tenant=ODD), door.token(tenant=ODD, key=ODD)]
    assert [await status(door, token) for token in tokens] == [200, 401]


async def test_it_ends_by_itself(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    clock = SetClock(time=SystemClock().now())
    operator = Operator(await open_door(scripted_engine.url, clock=clock))
    await operator.shown("PUT", {"tenant": "acme", "for": "1s"})
    assert await status(operator.door, operator.door.token()) == 401
    clock.advance(2)
    await operator.door.until(
        lambda s: s.total("gateway_settings_entries", settings="revocations", state="in_force") == 0
    )
    assert await status(operator.door, operator.door.token()) == 200
    (row,) = await operator.shown("GET")
    assert (row["in_force"], row["fault"]) == (False, "Its time is over.")


async def test_a_stream_that_runs_goes_on(operator: Operator, scripted_engine: ScriptedEngine) -> None:
    door = operator.door
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), never)
    headers = {"Authorization": f"Bearer {door.token()}"}
    async with door.session.post(door.url + CHAT, json=HI | {"stream": True}, headers=headers) as stream:
        await operator.shown("PUT", {"tenant": "acme", "key": "key-1"})
        assert await status(door, door.token()) == 401
        assert b" a" in await stream.content.readuntil(b' a"')
        assert (await door.metrics()).total("gateway_streams_open") == 1


@pytest.mark.parametrize(
    ("members", "param", "told"),
    [
        ({"key": "k"}, "tenant", "tenant must be a name"),
        ({"tenant": "acme", "key": "k", "jti": "j"}, "jti", "give one of them"),
        ({"tenant": "acme", "for": "ever"}, "for", "such as 30m or 2h"),
        ({"tenant": "acme", "token": "e30.e30.e30"}, "token", "there are tenant, key, jti, reason, for"),
        ([], None, "JSON object"),
    ],
)
async def test_what_is_wrong_is_400_and_changes_nothing(
    operator: Operator, members: Any, param: str | None, told: str
) -> None:
    reply = await operator.ask("PUT", members)
    assert (reply.status, reply.error["code"], reply.error.get("param")) == (400, "invalid_value", param)
    assert told in reply.error["message"]
    assert await operator.shown("GET") == []


@pytest.mark.parametrize(("method", "query"), [("GET", {"key": "k"}), ("DELETE", {"key": "k"}), ("DELETE", {})])
async def test_a_wrong_parameter_is_400(operator: Operator, method: str, query: dict[str, str]) -> None:
    reply = await operator.ask(method, **query)
    assert (reply.status, reply.error["code"]) == (400, "invalid_value")


async def test_a_web_page_changes_nothing(operator: Operator) -> None:
    for method, members, query in [("PUT", {"tenant": "acme"}, {}), ("DELETE", None, {"tenant": "acme"})]:
        reply = await operator.ask(method, members, headers={"Origin": operator.door.admin_url}, **query)
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
    assert await operator.shown("GET") == []
