"""/admin/limits on a running gateway: what is changed there holds for the next call; what is wrong is said."""

import json
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, never
from tests.identity_provider import SetClock
from tests.transcripts import chat, chat_role, chunked, head

HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
STANDARD = [
    {"name": "few", "per": ["key"], "requests": 2, "window": "day"},
    {"name": "day", "per": ["tenant"], "tokens": 1_000_000, "window": "day"},
    {"name": "slots", "per": ["tenant"], "concurrent": 4},
]
LIMITS: dict[str, Any] = {
    "plans": {"standard": STANDARD, "large": [{**STANDARD[0], "requests": 100}]},
    "default_plan": "standard",
    "tenants": {"acme": {"keys": {"batch": {"override": {"few": {"requests": 7}}}}}},
}
BOT = {"tenant": "acme", "key": "bot", "plan": "large", "sha256": "0" * 64}
# A name that no path could hold.
ODD = "a/../b?c=%2F&d #\u00fc"


class Operator:
    """Who asks the operator's listener of a door."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def ask(self, method: str, path: str, members: Any = None, *, headers: Any = None, **query: str) -> Reply:
        data = members if members is None or isinstance(members, bytes) else json.dumps(members).encode()
        url = f"{self.door.admin_url}/admin/limits{path}"
        async with self.door.session.request(method, url, data=data, params=query, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def shown(self, method: str, path: str, members: Any = None, **query: str) -> list[dict[str, Any]]:
        reply = await self.ask(method, path, members, **query)
        assert reply.status == 200, reply.body
        rows: list[dict[str, Any]] = reply.json()["data"]
        return [{name: value for name, value in row.items() if name != "set_at"} for row in rows]


@pytest.fixture
async def operator(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> Operator:
    return Operator(await open_door(scripted_engine.url, limits=LIMITS, auth={"api_keys": [BOT]}))


async def statuses(door: Door, calls: int, *, tenant: str = "acme", key: str = "key-1") -> list[int]:
    token = door.token(tenant=tenant, key=key)
    return [(await door.post(CHAT, HI, token=token)).status for _ in range(calls)]


async def test_a_rule_is_changed_for_the_next_call_and_back_and_its_count_is_kept(operator: Operator) -> None:
    door = operator.door
    assert await statuses(door, 3) == [200, 200, 429]
    row = {"tenant": "acme", "rule": "few", "requests": 3, "until": None, "in_force": True}
    assert await operator.shown("PUT", "/rules", {"tenant": "acme", "rule": "few", "requests": 3}) == [row]
    assert await statuses(door, 2) == [200, 429]
    assert await operator.shown("GET", "", tenant="acme") == [row]
    assert await operator.shown("DELETE", "/rules", tenant="acme", rule="few") == []
    assert await statuses(door, 1) == [429]
    assert (await operator.ask("DELETE", "/rules", tenant="acme", rule="few")).status == 404


async def test_a_plan_is_changed_for_a_key_alone(operator: Operator) -> None:
    rows = await operator.shown("PUT", "/plans", {"tenant": "acme", "key": "key-2", "plan": "large", "for": "2h"})
    assert rows[0].pop("until").endswith("Z")
    assert rows == [{"tenant": "acme", "key": "key-2", "plan": "large", "in_force": True}]
    assert await statuses(operator.door, 3, key="key-2") == [200, 200, 200]
    assert await statuses(operator.door, 3) == [200, 200, 429]
    assert await operator.shown("DELETE", "/plans", tenant="acme", key="key-2") == []
    assert await statuses(operator.door, 1, key="key-2") == [429]


async def test_a_running_call_keeps_what_it_was_admitted_with(
    operator: Operator, scripted_engine: ScriptedEngine
) -> None:
    door = operator.door
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), never)
    headers = {"Authorization": f"Bearer {door.token()}"}
    async with door.session.post(door.url + CHAT, json=HI | {"stream": True}, headers=headers) as stream:
        assert stream.status == 200
        await operator.shown("PUT", "/rules", {"tenant": "acme", "rule": "slots", "concurrent": 0})
        assert await statuses(door, 1) == [429]
        assert await stream.content.readany()
        (slots,) = [row for row in await applied(operator) if row["rule"] == "slots"]
        assert (slots["limit"], slots["used"], slots["remaining"]) == (0, 1, 0)


async def applied(operator: Operator, *, key: str = "key-1", **query: str) -> list[dict[str, Any]]:
    return await operator.shown("GET", "/applied", tenant="acme", key=key, model="tiny", **query)


async def test_what_applies_is_told_with_where_it_comes_from_and_what_is_used(operator: Operator) -> None:
    await operator.shown("PUT", "/rules", {"tenant": "acme", "rule": "day", "tokens": 500_000})
    await operator.shown("PUT", "/rules", {"tenant": "acme", "key": "key-1", "rule": "few", "shadow": True})
    assert await statuses(operator.door, 1) == [200]
    few, day, slots = await applied(operator)
    assert few == {
        "rule": "few", "limit": 2, "used": 1, "remaining": 1, "measure": "requests", "window": "day", "shadow": True,
        "source": "plan",
    }  # fmt: skip
    assert (day["limit"], day["source"]) == (500_000, "tenant_override")
    assert day["used"] > 0
    assert (slots["measure"], slots["window"], slots["used"]) == ("concurrent", None, 0)
    assert [row["source"] for row in await applied(operator, key="batch")] == ["key_config", "tenant_override", "plan"]
    assert [row["limit"] for row in await applied(operator, plan="large")] == [100]
    assert [row["limit"] for row in await applied(operator, key="bot")] == [100]  # which claims nothing: it has a plan
    reply = await operator.ask("GET", "/applied", tenant="acme", key="key-1", model="tiny", plan="large")
    assert (reply.json()["plan"], reply.json()["model"]) == ("large", "acme/tiny")


async def test_names_may_hold_anything(operator: Operator) -> None:
    await operator.shown("PUT", "/rules", {"tenant": ODD, "key": ODD, "rule": "few", "requests": 1})
    assert await statuses(operator.door, 2, tenant=ODD, key=ODD) == [200, 429]
    assert await statuses(operator.door, 2, tenant=ODD) == [200, 200]
    (row,) = await operator.shown("GET", "", tenant=ODD, key=ODD)
    assert (row["tenant"], row["key"]) == (ODD, ODD)
    assert await operator.shown("DELETE", "/rules", tenant=ODD, key=ODD, rule="few") == []


@pytest.mark.parametrize(
    ("path", "members", "param", "told"),
    [
        ("/rules", {"rule": "few", "requests": 1}, "tenant", "tenant must be a name"),
        ("/rules", {"tenant": "acme", "rule": "fwe", "requests": 1}, "rule", "there are few, day, slots"),
        ("/rules", {"tenant": "acme", "rule": "few", "tokens": 1}, "tokens", "Rule few limits requests, not tokens"),
        ("/rules", {"tenant": "acme", "rule": "few", "requests": -1}, "requests", "from 0 to 9007199254740991, not -1"),
        ("/rules", {"tenant": "acme", "rule": "few", "requests": 2**53}, "requests", "from 0 to 9007199254740991"),
        ("/rules", {"tenant": "acme", "rule": "few"}, None, "Nothing is changed"),
        ("/rules", {"tenant": "acme", "rule": "few", "requests": 1, "for": "ever"}, "for", "such as 30m or 2h"),
        ("/plans", {"tenant": "acme", "plan": "gone"}, "plan", "there are standard, large"),
        ("/plans", {"tenant": "acme", "plan": "large", "rule": "few"}, "rule", "There is no 'rule' here"),
        ("/plans", [], None, "JSON object"),
        ("/plans", b'{"tenant": "acme", "tenant": "other", "plan": "large"}', None, "not valid JSON"),
        ("/plans", b"", None, "The body is empty"),
    ],
)
async def test_a_wrong_change_is_400_says_what_is_wrong_and_changes_nothing(
    operator: Operator, path: str, members: Any, param: str | None, told: str
) -> None:
    reply = await operator.ask("PUT", path, members)
    assert reply.status == 400
    assert reply.error.get("param") == param
    assert told in reply.error["message"]
    assert await operator.shown("GET", "") == []


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "", {"tenat": "acme"}),
        ("GET", "/applied", {"tenant": "acme", "key": "key-1"}),
        ("GET", "/applied", {"tenant": "acme", "key": "key-1", "model": "gone"}),
        ("DELETE", "/rules", {"tenant": "acme"}),
        ("DELETE", "/plans", {"tenant": "acme", "rule": "few"}),
    ],
)
async def test_a_wrong_parameter_is_400(operator: Operator, method: str, path: str, query: dict[str, str]) -> None:
    reply = await operator.ask(method, path, **query)
    assert (reply.status, reply.error["code"]) == (400, "invalid_value")
    assert reply.error["param"]


@pytest.mark.parametrize(("method", "path"), [("PUT", "/rules"), ("PUT", "/plans"), ("DELETE", "/rules")])
async def test_a_web_page_changes_nothing(operator: Operator, method: str, path: str) -> None:
    members = {"tenant": "acme", "rule": "few", "requests": 1}
    reply = await operator.ask(method, path, members, headers={"Origin": operator.door.admin_url})
    assert (reply.status, reply.error["code"]) == (403, "forbidden")
    assert await operator.shown("GET", "") == []


async def test_an_override_ends_by_itself(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    clock = SetClock(time=SystemClock().now())
    operator = Operator(await open_door(scripted_engine.url, limits=LIMITS, clock=clock))
    await operator.shown("PUT", "/rules", {"tenant": "acme", "rule": "few", "requests": 0, "for": "1s"})
    assert await statuses(operator.door, 1) == [429]
    clock.advance(2)
    await operator.door.until(lambda s: s.total("gateway_settings_entries", state="in_force") == 0)
    assert await statuses(operator.door, 1) == [200]
    (row,) = await operator.shown("GET", "")
    assert (row["in_force"], row["fault"]) == (False, "Its time is over.")
