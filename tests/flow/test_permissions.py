"""Which models a caller may use: by its token, its tenant and its key, on every route alike, whatever name it calls."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import quote

import pytest

from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.envelope import error_of
from tests.transcripts import http

MODELS: dict[str, Any] = {
    "acme/small": {"pool": "main", "aliases": ["fast"], "fallbacks": ["acme/big"]},
    "acme/big": {"pool": "large", "aliases": ["big alias"]},
    "else/other": {"pool": {"large": 1, "main": 1}, "aliases": ["other"]},
}
SMALL, BIG, OTHER, TINY = "acme/small", "acme/big", "else/other", "acme/tiny"  # the last is every door's
NAMES = {
    SMALL: SMALL,
    "fast": SMALL,
    BIG: BIG,
    "big alias": BIG,
    OTHER: OTHER,
    "other": OTHER,
    TINY: TINY,
    "tiny": TINY,
}
NO_NAMES = ["nope", "ACME/SMALL", " fast", "fast ", "acme/small\0", "acme/small/", "acme/sm\u0430ll", "*", "acme/*"]

SECRETS: dict[str, dict[str, Any]] = {"sk-0123456789": {"models": [SMALL]}, "sk-9876543210": {"tenant": "boxed"}}
API_KEYS = [
    {"key": "key-1", "tenant": "acme", "sha256": hashlib.sha256(secret.encode()).hexdigest()} | entry
    for secret, entry in SECRETS.items()
]
TENANTS: dict[str, Any] = {
    "boxed": {"models": [SMALL]},
    "keyed": {"keys": {"few": {"models": [SMALL]}}},
    "wide": {"models": ["acme/*"], "keys": {"narrow": {"models": ["*[lr]"]}, "none": {"models": []}}},
}
# The claims of a token, or an API key; and what its bearer may use by all that is said of it.
CALLERS: dict[str, tuple[dict[str, Any] | str, set[str]]] = {
    "whom nothing is said of": ({}, {SMALL, BIG, OTHER, TINY}),
    "by its token": ({"models": [SMALL]}, {SMALL}),
    "by globs of its token": ({"models": ["acme/*"]}, {SMALL, BIG, TINY}),
    "whose token names an alias": ({"models": ["fast"]}, set()),
    "whose token permits none": ({"models": []}, set()),
    "by its tenant": ({"tenant": "boxed"}, {SMALL}),
    "whose token claims more than its tenant": ({"tenant": "boxed", "models": ["*"]}, {SMALL}),
    "by its key": ({"tenant": "keyed", "key": "few"}, {SMALL}),
    "of another key of that tenant": ({"tenant": "keyed"}, {SMALL, BIG, OTHER, TINY}),
    "of that key of another tenant": ({"tenant": "acme", "key": "few"}, {SMALL, BIG, OTHER, TINY}),
    "by token and tenant": ({"tenant": "wide", "models": ["*small", "*other"]}, {SMALL}),
    "by tenant and key": ({"tenant": "wide", "key": "narrow"}, {SMALL}),
    "whose key may use none": ({"tenant": "wide", "key": "none", "models": ["*"]}, set()),
    "by its API key": ("sk-0123456789", {SMALL}),
    "by its API key's tenant": ("sk-9876543210", {SMALL}),
}

Route = Callable[[Door, str, str], Awaitable[Reply]]


def posted(path: str, *, stream: bool) -> Route:
    prompt: dict[str, Any] = (
        {"prompt": "Hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi"}]}
    )

    async def post(door: Door, token: str, name: str) -> Reply:
        return await door.post(path, prompt | {"model": name, "stream": stream}, token=token)

    return post


ROUTES: dict[str, Route] = {
    f"{path}, {'stream' if stream else 'whole'}": posted(path, stream=stream)
    for path in (CHAT, COMPLETIONS)
    for stream in (False, True)
}
ROUTES["shown"] = lambda door, token, name: door.get(f"/v1/models/{quote(name, safe='')}", token=token)
ROUTES["shown, with its slash"] = lambda door, token, name: door.get(f"/v1/models/{quote(name)}", token=token)


@pytest.fixture
async def large(scripted_engines: Any) -> ScriptedEngine:
    engine: ScriptedEngine = await scripted_engines()
    return engine


@pytest.fixture
async def door(open_door: OpenDoor, scripted_engine: ScriptedEngine, large: ScriptedEngine) -> Door:
    pools = {"main": {"breaker": {"failures": 100}}, "large": {"replicas": [large.url]}}
    auth = {"tenants": TENANTS, "api_keys": API_KEYS}
    return await open_door(scripted_engine.url, pools=pools, models=MODELS, auth=auth)


def tokens(door: Door) -> Iterable[tuple[str, str, set[str]]]:
    """Yield who calls, with which token, and the models that it may use."""
    for who, (by, may) in CALLERS.items():
        yield who, by if isinstance(by, str) else door.token_of(**by), may


def seen(reply: Reply, name: str) -> tuple[int, Any, Any]:
    """Return all that a client sees of an answer but for what no two answers share, and for the name that was asked."""
    fields = {field.lower(): value for field, value in reply.headers.items()}
    for field in ("inference-id", "x-request-id", "date", "content-length"):
        assert fields.pop(field)
    assert repr(name) in reply.error["message"]
    return reply.status, fields, reply.error | {"message": reply.error["message"].replace(repr(name), "NAME")}


async def test_what_a_caller_may_not_use_is_not_there_by_any_name_on_any_route(
    door: Door, scripted_engine: ScriptedEngine, large: ScriptedEngine
) -> None:
    for label, route in ROUTES.items():
        looks = []
        for who, token, may in tokens(door):
            for name in [*(name for name, model in NAMES.items() if model not in may), *NO_NAMES]:
                looks.append(seen(await route(door, token, name), name))
                assert looks[-1] == looks[0], (who, label, name)
        status, _, error = looks[0]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert scripted_engine.requests == large.requests == []
    samples = await door.metrics()
    assert {labels["model"] for labels in samples.labels("gateway_requests_total")} == {"unknown"}


async def test_what_a_caller_may_use_is_listed_shown_and_served_by_all_its_names_and_nothing_else_is_listed(
    door: Door,
) -> None:
    for who, token, may in tokens(door):
        listed = (await door.get("/v1/models", token=token)).json()["data"]
        assert {one["id"] for one in listed} == may, who
        assert all(set(one.get("fallbacks", ())) <= may for one in listed)
        for label, route in ROUTES.items():
            for name in [name for name, model in NAMES.items() if model in may]:
                reply = await route(door, token, name)
                assert reply.status == 200, (who, label, name)
                if label.startswith("shown"):
                    assert reply.json() in listed
                else:
                    assert reply.headers["x-gateway-model"] == NAMES[name]


async def test_what_a_caller_may_not_use_does_not_stand_in_for_what_it_may(
    door: Door, scripted_engine: ScriptedEngine, large: ScriptedEngine
) -> None:
    for who, token, may in tokens(door):
        for label in [label for label in ROUTES if SMALL in may and not label.startswith("shown")]:
            asked = len(large.requests)
            scripted_engine.answer(http(b"", status="500 X"))
            reply = await ROUTES[label](door, token, "fast")
            served_by = reply.headers.get("x-gateway-model")
            assert (reply.status, served_by) == ((200, BIG) if BIG in may else (502, None)), (who, label)
            assert len(large.requests) - asked == (BIG in may)
            assert BIG in may or b"big" not in reply.body


WHOM = {"tenant": "acme", "key": "leaked", "jti": "stolen"}


@pytest.mark.parametrize("by", [("tenant",), ("tenant", "key"), ("tenant", "jti")], ids="-".join)
async def test_who_is_revoked_sees_what_a_stranger_sees_on_every_route_and_for_every_name(
    door: Door, scripted_engine: ScriptedEngine, by: tuple[str, ...]
) -> None:
    def signed(**claims: Any) -> str:
        return door.token_of(**{name: WHOM[name] for name in WHOM} | claims)

    routes = ROUTES | {
        "listed": lambda door, token, _name: door.get("/v1/models", token=token),
        "usage": lambda door, token, _name: door.get("/v1/usage", token=token),
    }
    names = [SMALL, BIG, "nope"]
    known, others = signed(models=["acme/*"]), [signed(tenant="else")]
    others += [] if by == ("tenant",) else [signed(**{by[-1]: "other"})]
    assert (await door.get("/v1/models", token=known)).status == 200  # and remembered
    revoked = [known, signed(models=[]), signed(models=["nope"])]
    query = {name: WHOM[name] for name in by}
    async with door.session.put(f"{door.admin_url}/admin/revocations", json=query) as done:
        assert done.status == 200
    looks = []
    for route in routes.values():
        for token in [*revoked, "e30.e30.e30", known[:-4] + "AAAA", "sk-unknown"]:
            for name in names:
                reply = await route(door, token, name)
                error_of(reply, 401, "invalid_token", "authentication_error")
                fields = {field.lower() for field in reply.headers}
                looks.append((reply.body, reply.headers["WWW-Authenticate"], fields))
                assert looks[-1] == looks[0]
    assert scripted_engine.requests == []
    samples = await door.metrics()
    told = samples.total("gateway_auth_failures_total", reason="revoked")
    assert told == len(routes) * len(revoked) * len(names)
    for token in others:
        assert (await door.get("/v1/models", token=token)).status == 200
    async with door.session.delete(f"{door.admin_url}/admin/revocations", params=query) as done:
        assert done.status == 200
    assert (await door.get("/v1/models", token=known)).status == 200


async def test_an_api_key_calls_is_booked_and_is_revoked_as_any_other(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    secret = "sk-0123456789"
    api_key = {"key": "key-1", "tenant": "acme", "sha256": hashlib.sha256(secret.encode()).hexdigest()}
    door = await open_door(scripted_engine.url, auth={"api_keys": [api_key]})
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    assert [(await door.post(CHAT, body, token=token)).status for token in (secret, door.token(key="k"))] == [200, 200]
    usage = (await door.get("/v1/usage?group_by=key", token=secret)).json()["data"]
    assert {row["key"]: row["calls"] for row in usage} == {"key-1": 1, "k": 1}
    assert all(name.lower() != "authorization" for name, _ in scripted_engine.requests[0].headers)

    async with door.session.put(f"{door.admin_url}/admin/revocations", json={"tenant": "acme", "key": "key-1"}) as done:
        assert done.status == 200
    replies = [await door.post(CHAT, body, token=token) for token in (secret, f"{secret}x")]
    for reply in replies:
        error_of(reply, 401, "invalid_token", "authentication_error")
    assert replies[0].body == replies[1].body
    assert (await door.post(CHAT, body, token=door.token(key="k"))).status == 200
    samples = await door.metrics()
    for reason in ("revoked", "api_key"):
        assert samples.total("gateway_auth_failures_total", reason=reason) == 1
    assert secret not in "".join(await door.logged(6))
