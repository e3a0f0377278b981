"""Which models a caller may use: by its token, its tenant and its key, on every path alike, whatever name it calls."""

import hashlib
from itertools import product
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, error_of

MODELS: dict[str, Any] = {
    "acme/small": {"pool": "main", "aliases": ["fast"]},
    "acme/big": {"pool": "large", "aliases": ["big-alias"]},
    "else/other": {"pool": "large"},
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    COMPLETIONS: {"prompt": "Hi"},
}
SECRET = "sk-0123456789"
API_KEY = {"key": "key-1", "tenant": "acme", "sha256": hashlib.sha256(SECRET.encode()).hexdigest()}
# The same permission, acme/small alone, said in each place where it can be, or by two that are each too wide.
SMALL: list[str] = ["acme/small"]
WAYS: dict[str, tuple[dict[str, Any], Any]] = {
    "token": ({}, SMALL),
    "tenant": ({"tenants": {"acme": {"models": SMALL}}}, None),
    "key": ({"tenants": {"acme": {"keys": {"key-1": {"models": SMALL}}}}}, None),
    "token and tenant": ({"tenants": {"acme": {"models": ["acme/*"]}}}, ["*small", "*other"]),
    "tenant and key": ({"tenants": {"acme": {"models": ["acme/*"], "keys": {"key-1": {"models": ["*[lr]"]}}}}}, None),
    "API key": ({"api_keys": [API_KEY | {"models": SMALL}]}, SECRET),
    "API key and tenant": ({"api_keys": [API_KEY], "tenants": {"acme": {"models": SMALL}}}, SECRET),
}


class Caller:
    """Who may use acme/small alone, and the engines behind both pools."""

    def __init__(self, door: Door, token: str, small: ScriptedEngine, large: ScriptedEngine) -> None:
        self.door = door
        self.token = token
        self.small = small
        self.large = large

    async def call(self, path: str, model: str, *, stream: bool) -> Reply:
        return await self.door.post(path, BODIES[path] | {"model": model, "stream": stream}, token=self.token)

    async def get(self, path: str) -> Reply:
        return await self.door.get(path, token=self.token)


@pytest.fixture(params=WAYS)
async def caller(
    request: pytest.FixtureRequest, open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: Any
) -> Caller:
    auth, by = WAYS[request.param]
    large = await scripted_engines()

    door = await open_door(scripted_engine.url, pools={"large": {"replicas": [large.url]}}, models=MODELS, auth=auth)
    return Caller(door, by if isinstance(by, str) else door.token_of(models=by), scripted_engine, large)


async def test_what_is_not_permitted_is_not_there_by_any_name_on_any_path(caller: Caller) -> None:
    asked = [
        "acme/big",
        "big-alias",
        "else/other",
        "acme/tiny",
        "ACME/SMALL",
        " acme/small",
        "acme/small\0",
        "FAST",
        "nope",
    ]
    for path, stream in product(BODIES, (False, True)):
        bodies = set()
        for name in asked:
            reply = await caller.call(path, name, stream=stream)
            error_of(reply, 404, "model_not_found", BAD_REQUEST, param="model")
            shown = repr(name).encode().replace(b"\\", b"\\\\")
            assert shown in reply.body
            bodies.add(reply.body.replace(shown, b"NAME"))
        assert len(bodies) == 1
    assert caller.small.requests == caller.large.requests == []


async def test_what_is_permitted_is_served_by_all_its_names_on_both_paths(caller: Caller) -> None:
    for path, stream, name in product(BODIES, (False, True), ("acme/small", "fast")):
        assert (await caller.call(path, name, stream=stream)).status == 200
    assert len(caller.small.requests) == 8
    assert caller.large.requests == []


async def test_what_is_permitted_is_listed_and_shown_and_nothing_else(caller: Caller) -> None:
    assert [model["id"] for model in (await caller.get("/v1/models")).json()["data"]] == ["acme/small"]
    for name in ("acme/small", "fast", "acme%2Fsmall"):
        assert (await caller.get(f"/v1/models/{name}")).json()["id"] == "acme/small"
    bodies = set()
    for name in ("acme/big", "big-alias", "else/other", "nope"):
        reply = await caller.get(f"/v1/models/{name}")
        error_of(reply, 404, "model_not_found", BAD_REQUEST, param="model")
        bodies.add(reply.body.replace(name.encode(), b"NAME"))
    assert len(bodies) == 1


async def test_a_tenants_permission_is_nobody_elses(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    auth = {"tenants": {"acme": {"models": [], "keys": {"key-1": {"models": ["*"]}}}}}
    door = await open_door(scripted_engine.url, auth=auth)
    body = BODIES[CHAT] | {"model": "tiny"}
    assert (await door.post(CHAT, body, token=door.token())).status == 404
    assert (await door.post(CHAT, body, token=door.token(tenant="other"))).status == 200
    assert (await door.get("/v1/models")).json()["data"] == []


async def test_an_api_key_calls_is_booked_and_is_revoked_as_any_other(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, auth={"api_keys": [API_KEY]})
    body = BODIES[CHAT] | {"model": "tiny"}
    assert [(await door.post(CHAT, body, token=token)).status for token in (SECRET, door.token(key="k"))] == [200, 200]
    usage = (await door.get("/v1/usage?group_by=key", token=SECRET)).json()["data"]
    assert {row["key"]: row["calls"] for row in usage} == {"key-1": 1, "k": 1}
    assert all(name.lower() != "authorization" for name, _ in scripted_engine.requests[0].headers)

    async with door.session.put(f"{door.admin_url}/admin/revocations", json={"tenant": "acme", "key": "key-1"}) as done:
        assert done.status == 200
    replies = [await door.post(CHAT, body, token=token) for token in (SECRET, f"{SECRET}x")]
    for reply in replies:
        error_of(reply, 401, "invalid_token", "authentication_error")
    assert replies[0].body == replies[1].body
    assert (await door.post(CHAT, body, token=door.token(key="k"))).status == 200
    samples = await door.metrics()
    for reason in ("revoked", "api_key"):
        assert samples.total("gateway_auth_failures_total", reason=reason) == 1
    assert SECRET not in "".join(await door.logged(6))
