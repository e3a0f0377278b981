"""GET /v1/usage and /admin/usage after whole calls: what the ledger says is what metrics say and the engine told."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.doors import CHAT, MODEL, Door, OpenDoor
from tests.engines import ScriptedEngine, close, never
from tests.leaving import client_of
from tests.transcripts import answer, chat, chat_role, chunked, head, http, sse, transcript, usage_of

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = ASK | {"stream": True}
COUNTERS = [
    "calls", "refused", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "estimated_tokens",
]  # fmt: skip
RULES = {"plans": {"standard": [{"name": "tokens", "per": ["key"], "tokens": 1000, "window": "day"}]}}
TODAY = datetime.fromtimestamp(SystemClock().now(), UTC).date().isoformat()

Act = Callable[[Door, ScriptedEngine], Awaitable[None]]


def figures(**told: int) -> dict[str, int]:
    return dict.fromkeys(COUNTERS, 0) | told


async def stream(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(sse(transcript(" Hello", " world", usage=(12, 2))))
    assert (await door.post(CHAT, STREAM)).status == 200


async def whole_with_details(door: Door, engine: ScriptedEngine) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 3}}
    told = answer("chat", " Hi", usage=(12, 7))
    usage = b'"usage":{'
    assert told.count(usage) == 1
    extra = b"".join(b'"%s":%s,' % (k.encode(), str(v).replace("'", '"').encode()) for k, v in details.items())
    engine.answer(http(told.replace(usage, usage + extra)))
    assert (await door.post(CHAT, ASK)).status == 200


async def whole_without_usage(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(http(answer("chat", " Hi")))
    assert (await door.post(CHAT, ASK)).status == 200


async def client_gone(door: Door, engine: ScriptedEngine) -> None:
    events = [chat_role(usage=usage_of((10, 0))), *[chat(f" {n}.", usage=usage_of((10, n))) for n in range(1, 5)]]
    engine.answer(head(), *map(chunked, events), never)
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        await client.reads(b'" 4."')


async def broken(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(
        head(), chunked(chat_role(usage=usage_of((10, 0)))), chunked(chat(" a", usage=usage_of((10, 1)))), close
    )
    assert b'"error"' in (await door.post(CHAT, STREAM)).body


async def refused_by_a_limit(door: Door, engine: ScriptedEngine) -> None:
    assert (await door.post(CHAT, ASK | {"max_tokens": 2000})).status == 429


async def refused_by_the_engine(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(http(b'{"message":"no"}', status="400 Bad Request"))
    assert (await door.post(CHAT, ASK)).status == 400


async def upstream_failed(door: Door, engine: ScriptedEngine) -> None:
    for _ in range(3):
        engine.answer(http(b"broken", status="500 Internal Server Error"))
    assert (await door.post(CHAT, ASK)).status == 502


async def refused_before(door: Door, engine: ScriptedEngine) -> None:
    assert (await door.post(CHAT, ASK | {"temperature": 9})).status == 400
    assert (await door.post(CHAT, ASK | {"model": "another"})).status == 404
    assert (await door.post(CHAT, ASK, token="none")).status == 401


ACTS: dict[str, tuple[Act, dict[str, int] | None]] = {
    "a stream": (stream, figures(calls=1, prompt_tokens=12, completion_tokens=2)),
    "a whole answer": (
        whole_with_details,
        figures(calls=1, prompt_tokens=12, completion_tokens=7, cached_tokens=5, reasoning_tokens=3),
    ),
    "a client that leaves": (client_gone, figures(calls=1, prompt_tokens=10, completion_tokens=4)),
    "an engine that dies": (broken, figures(calls=1, prompt_tokens=10, completion_tokens=1)),
    "a limit that refuses": (refused_by_a_limit, figures(refused=1)),
    "an engine that refuses": (refused_by_the_engine, figures(calls=1)),
    "an engine that fails": (upstream_failed, None),
    "calls that are refused before": (refused_before, None),
}


@pytest.mark.parametrize("name", ACTS)
async def test_the_ledger_says_what_the_engine_told_and_so_do_the_metrics(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    act, told = ACTS[name]
    door = await open_door(scripted_engine.url, limits=RULES)
    await act(door, scripted_engine)
    await same_in_metrics(door)
    assert await usage(door, "group_by=day,key,model") == (
        [] if told is None else [{"day": TODAY, "key": "key-1", "model": MODEL} | told]
    )


async def test_an_estimate_is_booked_as_one(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url, pools={"main": {"engine": "openai"}}, limits=RULES)
    await whole_without_usage(door, scripted_engine)
    [row] = await usage(door, "")
    assert row["calls"] == 1
    assert row["estimated_tokens"] == row["prompt_tokens"] + row["completion_tokens"] > 0
    assert (await same_in_metrics(door)) == row["estimated_tokens"]


async def same_in_metrics(door: Door) -> float:
    """Hold what all rows add up to against the metrics; return what is estimated."""
    samples = await door.idle()
    rows = await usage(door, "")
    for kind in ("prompt", "completion", "cached", "reasoning"):
        assert samples.total("gateway_tokens_total", kind=kind) == sum(row[f"{kind}_tokens"] for row in rows)
    estimated = sum(
        samples.total("gateway_tokens_total", kind=kind, source="estimated") for kind in ("prompt", "completion")
    )
    assert estimated == sum(row["estimated_tokens"] for row in rows)
    return estimated


async def usage(door: Door, query: str, *, token: str | None = None) -> Any:
    reply = await door.get(f"/v1/usage?{query}" if query else "/v1/usage", token=token)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    assert reply.headers["INFERENCE-ID"] == reply.headers["x-request-id"]
    assert reply.json()["object"] == "list"
    return reply.json()["data"]


async def two_tenants(open_door: OpenDoor, engine: ScriptedEngine) -> Door:
    """Return a gateway that served 2 calls of acme's key-1, 1 of its `key 2/ü`, and 1 of globex'."""
    door = await open_door(engine.url)
    for tenant, key in [("acme", "key-1"), ("acme", "key-1"), ("acme", "key 2/ü"), ("globex", "key-1")]:
        engine.answer(http(answer("chat", " Hi", usage=(10, 2))))
        assert (await door.post(CHAT, ASK, token=door.token(tenant=tenant, key=key))).status == 200
    await door.idle()
    return door


async def test_a_tenant_sees_its_own_usage_grouped_as_it_asks(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await two_tenants(open_door, scripted_engine)
    one = figures(calls=1, prompt_tokens=10, completion_tokens=2)
    two = figures(calls=2, prompt_tokens=20, completion_tokens=4)
    three = figures(calls=3, prompt_tokens=30, completion_tokens=6)
    assert await usage(door, "") == [{"day": TODAY} | three]
    assert await usage(door, "group_by=key") == [{"key": "key 2/ü"} | one, {"key": "key-1"} | two]
    rows = await usage(door, f"since={TODAY}&until={TODAY}&group_by=model%2Ckey")
    assert rows == [{"model": MODEL, "key": "key 2/ü"} | one, {"model": MODEL, "key": "key-1"} | two]
    assert list(rows[0]) == ["model", "key", *COUNTERS]
    assert await usage(door, "since=2020-01-01&until=2020-01-31") == []
    assert await usage(door, "", token=door.token(tenant="globex")) == [{"day": TODAY} | one]
    assert await usage(door, "", token=door.token(tenant="nobody")) == []


async def test_an_operator_sees_every_tenant(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await two_tenants(open_door, scripted_engine)
    one = figures(calls=1, prompt_tokens=10, completion_tokens=2)
    three = figures(calls=3, prompt_tokens=30, completion_tokens=6)
    reply = await door.get_admin("/admin/usage")
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    acme, globex = {"day": TODAY, "tenant": "acme"} | three, {"day": TODAY, "tenant": "globex"} | one
    assert reply.json() == {"object": "list", "data": [acme, globex]}
    assert (await door.get_admin("/admin/usage?tenant=globex")).json()["data"] == [globex]
    grouped = (await door.get_admin("/admin/usage?group_by=tenant,key&tenant=acme")).json()["data"]
    assert [(row["tenant"], row["key"], row["calls"]) for row in grouped] == [
        ("acme", "key 2/ü", 1),
        ("acme", "key-1", 2),
    ]


BAD = {
    "since=yesterday": "since",
    "since=20261101": "since",
    "since=2026-11-31": "since",
    "since=": "since",
    "until=2026-W45-1": "until",
    "since=2026-11-02&until=2026-11-01": "since",
    "since=2020-01-01&until=2021-01-01": "since",
    "until=9999-12-31": "until",
    "group_by=": "group_by",
    "group_by=day,day": "group_by",
    "group_by=day,colour": "group_by",
    "group_by=day&group_by=key": "group_by",
    "colour=red": "colour",
    "since=%FF%00%ED%A0%80": "since",
    "since=\xff": "since",
}


@pytest.mark.parametrize("query", BAD)
async def test_a_bad_parameter_is_named(open_door: OpenDoor, scripted_engine: ScriptedEngine, query: str) -> None:
    door = await open_door(scripted_engine.url)
    for reply in (await door.get(f"/v1/usage?{query}"), await door.get_admin(f"/admin/usage?{query}")):
        assert reply.status == 400
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert (reply.error["code"], reply.error["param"]) == ("invalid_value", BAD[query])


async def test_a_tenant_cannot_ask_for_another(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await two_tenants(open_door, scripted_engine)
    for query in ("tenant=globex", "group_by=tenant"):
        assert (await door.get(f"/v1/usage?{query}")).status == 400
    assert (await door.get("/v1/usage", token="forged")).status == 401
    assert (await door.post("/v1/usage", {})).status == 405
    assert (await door.get("/admin/usage")).status == 404


async def test_hundreds_of_parameters_are_refused(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    assert (await door.get("/v1/usage?" + "&".join(f"x{n}=1" for n in range(500)))).status == 400


async def test_without_its_store_usage_is_unavailable_and_calls_are_not(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, limits={"store": "redis://127.0.0.1:1/0"})
    for reply in (await door.get("/v1/usage"), await door.get_admin("/admin/usage")):
        assert reply.status == 503
        assert reply.error["code"] == "limits_unavailable"
        assert int(reply.headers["Retry-After"]) >= 1
    assert (await door.post(CHAT, ASK)).status == 200
