"""GET /v1/models, /v1/models/{id} and /openapi.json."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, SERVER_ERROR, error_of

BIG = "meta-llama/Llama-3.1-70B"
MODELS: dict[str, Any] = {
    "models": {
        "acme/tiny": {"aliases": ["tiny", "fast"], "owned_by": "acme", "created": 1_700_000_000},
        BIG: {
            "pool": "large",
            "aliases": ["big", "org/big alias"],
            "max_model_len": 8192,
            "pricing": {"input": 0.5, "output": 1.5},
        },
    }
}
TINY_PAGE = {"id": "acme/tiny", "object": "model", "created": 1_700_000_000, "owned_by": "acme"}
BIG_PAGE = {
    "id": BIG, "object": "model", "created": 0, "owned_by": "gateway", "max_model_len": 8192,
    "pricing": {"input": 0.5, "output": 1.5},
}  # fmt: skip


async def opened(open_door: OpenDoor, small: ScriptedEngine, large: ScriptedEngine) -> Door:
    return await open_door(small.url, pools={"large": {"replicas": [large.url]}}, **MODELS)


def permitting(door: Door, models: Any) -> str:
    """Return a token that says which models its bearer may use."""
    return door.token_of(models=models)


async def test_the_list_has_openais_shape_in_the_order_of_the_config(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine, scripted_engine)
    reply = await door.get("/v1/models")
    assert reply.json() == {"object": "list", "data": [TINY_PAGE, BIG_PAGE]}
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    assert reply.headers["INFERENCE-ID"] == reply.headers["x-request-id"]
    assert (await door.get("/v1/models?limit=1")).json() == reply.json()
    assert scripted_engine.requests == []


@pytest.mark.parametrize(
    "escape", [lambda name: name, lambda name: quote(name, safe=""), lambda name: quote(name).lower()]
)
async def test_a_model_is_found_by_its_name_and_its_aliases_however_its_slash_is_written(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, escape: Any
) -> None:
    door = await opened(open_door, scripted_engine, scripted_engine)
    for name, page in [("acme/tiny", TINY_PAGE), ("fast", TINY_PAGE), ("big", BIG_PAGE)]:
        assert (await door.get(f"/v1/models/{escape(name)}")).json() == page
    assert (await door.get(f"/v1/models/{quote(BIG, safe='')}")).json() == BIG_PAGE
    assert (await door.get("/v1/models/org%2fbig%20alias")).json() == BIG_PAGE


@pytest.mark.parametrize(
    "name",
    ["nope", "", "ACME/TINY", "acme%252Ftiny", "acme/tiny/", "acme//tiny", "acme", "tiny%00", "tiny%20", "%FF"],
)
async def test_any_other_name_is_404(open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str) -> None:
    door = await opened(open_door, scripted_engine, scripted_engine)
    error_of(await door.get(f"/v1/models/{name}"), 404, "model_not_found", BAD_REQUEST, param="model")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/acme/tiny", "/v1/models/nope"])
async def test_strangers_learn_nothing(open_door: OpenDoor, scripted_engine: ScriptedEngine, path: str) -> None:
    door = await opened(open_door, scripted_engine, scripted_engine)
    async with door.session.get(door.url + path) as response:
        reply = Reply(response.status, response.headers, await response.read())
    error_of(reply, 401, "missing_token", "authentication_error")


async def test_a_caller_whose_model_is_down_is_not_served_by_another(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: Any
) -> None:
    large = await scripted_engines()
    await scripted_engine.close()
    health = {"health": {"interval": "50ms", "unhealthy_after": 1}}
    door = await open_door(scripted_engine.url, pools={"main": health, "large": {"replicas": [large.url]}}, **MODELS)
    await door.until(lambda samples: samples.total("gateway_replica_up", pool="main") == 0)
    token = permitting(door, ["acme/tiny"])
    reply = await door.post(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}, token=token)
    error_of(reply, 503, "no_replica_available", SERVER_ERROR)
    assert large.requests == []


async def test_the_openapi_document_is_there_for_anybody(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await opened(open_door, scripted_engine, scripted_engine)
    async with door.session.get(door.url + "/openapi.json") as response:
        document = await response.json()
        assert response.headers["Content-Length"] == str(len(await response.read()))
    assert response.status == 200
    assert response.headers["INFERENCE-ID"] == response.headers["x-request-id"]
    assert document["openapi"].startswith("3.")
    assert {CHAT, COMPLETIONS} <= set(document["paths"])
    assert set(document["paths"][CHAT]["post"]["responses"]) == {"200", "400", "401", "404", "429", "500", "502", "503"}
