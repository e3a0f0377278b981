"""Every refusal of the gateway's own, whole: status, body and headers, alike for streams and for whole answers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jwt
import pytest

from gateway.clock import SystemClock
from gateway.identity import development
from tests.certificates import certified
from tests.doors import CHAT, COMPLETIONS, MODEL, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, never
from tests.envelope import BAD_REQUEST, SERVER_ERROR, error_of
from tests.ports import free_port
from tests.transcripts import http

HI = [{"role": "user", "content": "Hi"}]
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def ask(*, stream: bool = False, **changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, "stream": stream} | changes


async def authorized(door: Door, header: str | None, body: Any) -> Reply:
    """Send a call with exactly this Authorization, or none."""
    headers = {"Content-Type": "application/json"} | ({} if header is None else {"Authorization": header})
    async with door.session.post(door.url + CHAT, json=body, headers=headers) as response:
        return Reply(response.status, response.headers, await response.read())


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"temperature": 9}, "invalid_value", "temperature"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "messages[0].content"),
        ({"priority": 1}, "unsupported_value", "priority"),
        (
            {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "unsupported_value",
            "tool_choice",
        ),
        ({"messages": None}, "missing_field", "messages"),
        ({"model": None}, "missing_field", "model"),
    ],
)
@STREAM
async def test_a_wrong_body_is_400_with_the_path_of_the_field(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, changes: Any, code: str, param: str, stream: bool
) -> None:
    door = await open_door(scripted_engine.url)
    error_of(await door.post(CHAT, ask(stream=stream) | changes), 400, code, BAD_REQUEST, param=param)
    assert scripted_engine.requests == []


@STREAM
async def test_the_completions_operation_refuses_in_the_same_shape(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    door = await open_door(scripted_engine.url)
    body: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "stream": stream}
    rows: list[tuple[dict[str, Any], int, str, str]] = [
        ({"prompt": None}, 400, "missing_field", "prompt"),
        ({"n": 0}, 400, "invalid_value", "n"),
        ({"model": "nope"}, 404, "model_not_found", "model"),
    ]
    for changes, status, code, param in rows:
        error_of(await door.post(COMPLETIONS, body | changes), status, code, BAD_REQUEST, param=param)


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Basic dXNlcjpwYXNz"])
@STREAM
async def test_without_a_token_401_names_the_scheme_and_no_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, header: str | None, stream: bool
) -> None:
    door = await open_door(scripted_engine.url)
    reply = await authorized(door, header, ask(stream=stream))
    error_of(reply, 401, "missing_token", "authentication_error")
    assert reply.headers["WWW-Authenticate"] == "Bearer"


@STREAM
async def test_a_token_that_is_not_accepted_is_401_with_a_challenge(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    door = await open_door(scripted_engine.url)
    now = int(SystemClock().now())
    good = {"iss": development.ISSUER, "iat": now, "exp": now + 60, "tenant": "acme", "key": "key-1"}
    key_id = jwt.get_unverified_header(door.token())["kid"]

    def signed(**claims: Any) -> str:
        return jwt.encode(good | claims, door.signing, algorithm="ES256", headers={"kid": key_id})

    assert (await authorized(door, f"Bearer {signed()}", ask(stream=stream))).status == 200
    for token, code in [
        ("a.b", "invalid_token"),
        (door.token()[:-4] + "AAAA", "invalid_token"),
        (signed(tenant=None), "invalid_token"),
        (signed(key=["key-1"]), "invalid_token"),
        (signed(models="tiny"), "invalid_token"),
        (signed(exp=now - 60), "expired_token"),
    ]:
        reply = await authorized(door, f"Bearer {token}", ask(stream=stream))
        message = error_of(reply, 401, code, "authentication_error")
        assert message.isascii()
        assert reply.headers["WWW-Authenticate"] == f'Bearer error="invalid_token", error_description="{message}"'
    assert len(scripted_engine.requests) == 1
    assert (await door.metrics()).total("gateway_auth_failures_total") == 6


@STREAM
async def test_a_model_that_is_not_there_is_404(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    door = await open_door(scripted_engine.url)
    for name in ["nope", "TINY", " tiny", "tiny\0", "acme/tiny/"]:
        reply = await door.post(CHAT, ask(stream=stream, model=name))
        error_of(reply, 404, "model_not_found", BAD_REQUEST, param="model")


LIMITED = {
    "requests": ({"requests": 1, "window": "1h"}, "rate_limit_exceeded", "requests"),
    "tokens": ({"tokens": 12, "count": "output", "window": "1h"}, "rate_limit_exceeded", "tokens"),
    "month": ({"requests": 1, "window": "month"}, "quota_exceeded", "insufficient_quota"),
    "too large": ({"tokens": 11, "count": "output", "window": "1m"}, "request_exceeds_limit", "insufficient_quota"),
}


@pytest.mark.parametrize("name", LIMITED)
@STREAM
async def test_a_limit_refuses_with_429(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, name: str, stream: bool
) -> None:
    rule, code, kind = LIMITED[name]
    door = await open_door(
        scripted_engine.url, limits={"plans": {"standard": [{"name": "rule", "per": ["key"], **rule}]}}
    )
    fits = name != "too large"
    if fits:
        assert (await door.post(CHAT, ask(stream=stream, max_tokens=12))).status == 200
    error_of(await door.post(CHAT, ask(stream=stream, max_tokens=12)), 429, code, kind)
    assert len(scripted_engine.requests) == fits


@STREAM
async def test_a_call_too_many_at_once_is_429(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    scripted_engine.answer(never)
    rule = {"name": "rule", "per": ["key"], "concurrent": 1}
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    first = asyncio.create_task(door.post(CHAT, ask(stream=stream)))
    await scripted_engine.asked()
    reply = await door.post(CHAT, ask(stream=stream))
    error_of(reply, 429, "rate_limit_exceeded", "concurrency")
    assert not [name for name in reply.headers if name.lower().startswith("x-ratelimit")]
    first.cancel()


@STREAM
async def test_without_a_replica_that_is_up_it_is_503(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    await scripted_engine.close()
    health = {"interval": "50ms", "unhealthy_after": 1}
    door = await open_door(scripted_engine.url, pools={"main": {"health": health}})
    await door.until(lambda samples: samples.total("gateway_replica_up") == 0)
    reply = await door.post(CHAT, ask(stream=stream))
    error_of(reply, 503, "no_replica_available", SERVER_ERROR)
    assert (await door.metrics()).total("gateway_upstream_attempts_total") == 0


@STREAM
async def test_a_call_that_waits_when_the_gateway_stops_is_503(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    scripted_engine.answer(never)
    door = await open_door(scripted_engine.url, server={"drain_timeout": "50ms"})
    call = asyncio.create_task(door.post(CHAT, ask(stream=stream)))
    await scripted_engine.asked()
    await door.gateway.stop()
    reply = await call
    error_of(reply, 503, "draining", SERVER_ERROR)
    assert reply.headers["Connection"] == "close"


@STREAM
async def test_with_limits_that_cannot_be_checked_it_is_503_where_the_config_says_deny(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    rule = {"name": "rule", "requests": 5, "window": "1m"}
    away = {"store": "redis://127.0.0.1:1/0", "on_store_failure": "deny", "plans": {"standard": [rule]}}
    door = await open_door(scripted_engine.url, limits=away)
    error_of(await door.post(CHAT, ask(stream=stream)), 503, "limits_unavailable", SERVER_ERROR)
    assert scripted_engine.requests == []


@pytest.mark.parametrize(
    ("per_plan", "status", "ready"),
    [
        ({"standard": "deny", "b": None}, 503, 200),
        ({"standard": "deny", "b": "deny"}, 503, 503),
        ({"standard": "local", "b": None}, 200, 200),
    ],
    ids=["one plan denies", "both plans deny", "none denies"],
)
async def test_a_rule_that_denies_makes_a_gateway_unready_only_where_all_are_refused(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, per_plan: dict[str, Any], status: int, ready: int
) -> None:
    rule = {"name": "rule", "requests": 5, "window": "1m"}
    plans = {plan: [rule | {"on_store_failure": word}] for plan, word in per_plan.items()}
    away = {"store": "redis://127.0.0.1:1/0", "on_store_failure": "allow", "default_plan": "standard", "plans": plans}
    door = await open_door(scripted_engine.url, limits=away)
    assert (await door.post(CHAT, ask(stream=False))).status == status
    other = await door.post(CHAT, ask(stream=False), token=door.token(plan="b"))
    assert (other.status == 200) == (ready == 200)
    assert (await door.get_admin("/readyz")).status == ready


@STREAM
async def test_without_any_keys_of_the_tokens_issuer_it_is_503(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    issuer = {"issuer": "https://idp.example", "jwks": "http://127.0.0.1:1/jwks", "algorithms": ["ES256"]}
    door = await open_door(scripted_engine.url, auth={"issuers": [issuer]})
    now = int(SystemClock().now())
    claims = {"iss": "https://idp.example", "sub": "key-1", "org_id": "acme", "iat": now, "exp": now + 60}
    token = jwt.encode(claims, door.signing, algorithm="ES256", headers={"kid": "k1"})
    reply = await authorized(door, f"Bearer {token}", ask(stream=stream))
    error_of(reply, 503, "identity_unavailable", SERVER_ERROR)


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/", 404, "not_found", None),
        ("POST", "/v1/embeddings", 404, "not_found", None),
        ("GET", CHAT, 405, "method_not_allowed", "POST"),
        ("DELETE", COMPLETIONS, 405, "method_not_allowed", "POST"),
        ("POST", "/v1/models", 405, "method_not_allowed", "GET"),
        ("PUT", f"/v1/models/{MODEL}", 405, "method_not_allowed", "GET"),
        ("POST", "/openapi.json", 405, "method_not_allowed", "GET"),
    ],
)
async def test_other_paths_and_methods_get_the_same_shape(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, method: str, path: str, *, status: int, code: str, allow: Any
) -> None:
    door = await open_door(scripted_engine.url)
    async with door.session.request(method, door.url + path) as response:
        reply = Reply(response.status, response.headers, await response.read())
    error_of(reply, status, code, BAD_REQUEST)
    assert reply.headers.get("Allow") == allow


async def test_no_refusal_tells_of_the_inside_and_no_log_line_of_the_client(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    inside = {"url": scripted_engine.url.replace("127.0.0.1", "localhost") + "/canary-path"}
    door = await open_door(
        pools={"main": {"replicas": [inside], "api_key": "canary-key", "timeouts": {"first_byte": "100ms"}}},
        limits={"plans": {"standard": [{"name": "rule", "tokens": 1000, "window": "1m"}]}},
    )
    said = [{"role": "user", "content": "secret-prompt"}]
    bodies: list[Any] = [
        ask(messages=said, max_tokens=5000),
        ask(messages=said, temperature=9),
        ask(messages=[*said, {"role": "user", "content": ["secret-prompt"]}]),
        ask(messages=said, priority="secret-prompt"),
        b'{"secret-prompt": "secret-prompt", "messages": secret-prompt}',
        json.dumps(ask(messages=said)).encode() + b"secret-prompt",
        *[ask(messages=said, max_tokens=8, stream=stream) for stream in (False, False, True, True)],
    ]
    traceback = b"Traceback (most recent call last): canary-trace"
    for _ in range(2):
        scripted_engine.answer(http(traceback, status="500 canary-reason", headers=[("x-canary", "1")]))
    scripted_engine.answer(b"canary: not HTTP\r\n\r\n")
    scripted_engine.answer(never)
    replies = [await door.post(CHAT, body) for body in bodies]
    expired = door.token(ttl_s=-3600)
    headers = [f"Bearer {door.token()}secret", "Bearer secret", "Basic secret", f"secret {door.token()}"]
    headers.append(f"Bearer {expired}")
    for key_id in ("line\nsecret", "secret\u2028", "secret\x1b[31m"):
        claims = {"iss": development.ISSUER, "exp": 1, "tenant": "secret", "key": "secret"}
        headers.append(f"Bearer {jwt.encode(claims, door.signing, algorithm='ES256', headers={'kid': key_id})}")
    replies += [await authorized(door, header, ask(messages=said)) for header in headers]
    assert sorted(reply.status for reply in replies) == [400] * 5 + [401] * 8 + [429] + [502] * 4
    told = [f"{reply.headers} {reply.body!r}" for reply in replies]
    for inner in ("canary", "localhost", str(scripted_engine.port), "Traceback", "Error(", door.token(), expired):
        assert not [text for text in told if inner in text]
    logs = [*await door.logged(len(replies)), *caplog.messages]
    for secret in ("secret", "canary-key", "canary-trace", "Traceback", door.token(), expired):
        assert not [line for line in logs if secret in line]


@pytest.mark.parametrize("trouble", ["nobody listens", "no such name", "no TLS", "an unknown certificate"])
async def test_an_engine_that_cannot_be_had_is_told_of_without_its_address(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    caplog.set_level("DEBUG")
    port = free_port()
    if trouble == "an unknown certificate":
        await scripted_engine.close()
        await scripted_engine.start(tls=certified(tmp_path)[0])
    urls = {
        "nobody listens": f"http://localhost:{port}",
        "no such name": f"http://inside.invalid:{port}",
        "no TLS": f"https://localhost:{scripted_engine.port}",
        "an unknown certificate": f"https://localhost:{scripted_engine.port}",
    }
    replica = {"url": urls[trouble] + "/inside"}
    door = await open_door(
        pools={"main": {"replicas": [replica], "api_key": "canary-key", "timeouts": {"connect": "200ms"}}}
    )
    said = [{"role": "user", "content": "secret-prompt"}]
    token = door.token()
    for stream in (False, True):
        reply = await door.post(CHAT, ask(messages=said, stream=stream), token=token)
        error_of(reply, 502, "upstream_error", "upstream_error")
        told = f"{reply.headers} {reply.body!r}".lower()
        inner = (
            "inside",
            "localhost",
            "127.0.0.1",
            f":{port}",
            f":{scripted_engine.port}",
            "errno",
            "ssl",
            "cert",
            "canary",
        )
        assert not [word for word in inner if word in told]
    logs = [*await door.logged(2), *caplog.messages]
    for secret in ("secret-prompt", "canary-key", "Traceback", token):
        assert not [line for line in logs if secret in line]
