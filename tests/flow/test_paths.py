"""Request lines in every spelling: what the plain path reaches, nothing else does."""

import pytest

from tests.doors import CHAT, MODEL, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, error_of
from tests.raw_client import raw_client

BODY = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}'


def request(method: str, target: str, token: str | None = None, *fields: str, body: bytes = BODY) -> bytes:
    """Return a request; `fields` are whole header lines."""
    lines = [f"{method} {target} HTTP/1.1", "Host: gateway.example", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *fields, *([f"Authorization: Bearer {token}"] if token else [])]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def once(door: Door, data: bytes, *, bodiless: bool = False) -> Reply:
    async with raw_client(door.port) as client:
        return await client.ask(data, bodiless=bodiless)


SPELLINGS = [
    f"/{CHAT}", "/v1//chat/completions", "/v1/./chat/completions", "/v1/../v1/chat/completions",
    "/metrics/../v1/chat/completions", "/healthz%2f..%2fv1%2fchat%2fcompletions", "/v1%2fchat%2fcompletions",
    "/%2e%2e/v1/chat/completions", "/v1/%2e/chat/completions", "/v1/%252e/chat/completions", "/v1/chat/complet%69ons",
    f"{CHAT}/", f"{CHAT};a=b", "/V1/CHAT/COMPLETIONS", f"{CHAT}%00", f"{CHAT}%20", f"{CHAT}%3Fx", f"{CHAT}x",
    "\\v1\\chat\\completions", "/v1/chat", "/v1", "/", "*",
    f"http://other.example{CHAT}", f"http://gateway.example{CHAT}", f"https://127.0.0.1:1{CHAT}",
]  # fmt: skip


async def test_no_other_spelling_reaches_an_operation(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    for target in SPELLINGS:
        for token in (None, door.token()):
            reply = await once(door, request("POST", target, token))
            assert reply.status in {400, 404}, target
            error_of(reply, reply.status, "not_found" if reply.status == 404 else "invalid_value", BAD_REQUEST)
    assert scripted_engine.requests == []
    assert (await once(door, request("POST", CHAT, door.token()))).status == 200
    samples = await door.metrics()
    assert samples.total("gateway_requests_total", endpoint="chat") == 1


async def test_a_query_is_no_part_of_the_path(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    for target in (f"{CHAT}?x", f"{CHAT}?access_token={door.token()}", f"{CHAT}?a=../../metrics"):
        assert (await once(door, request("POST", target, door.token()))).status == 200
        error_of(await once(door, request("POST", target)), 401, "missing_token", "authentication_error")
    assert {received.target for received in scripted_engine.requests} == {CHAT}
    assert not any("access_token" in line for line in await door.logged(6))


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/livez", "/readyz", "/admin", "/admin/", "/admin/config", "/health", "/healthz", "/docs", "/version",
     "/load", "/v1/models/../../metrics", "/v1/models/../../admin", "/favicon.ico"],
)  # fmt: skip
async def test_neither_the_operators_nor_the_engines_paths_are_here(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, path: str
) -> None:
    door = await open_door(scripted_engine.url)
    for token in (None, door.token()):
        reply = await once(door, request("GET", path, token, body=b""))
        if path.startswith("/v1/models/"):
            assert (reply.status, reply.error["code"]) == (
                (404, "model_not_found") if token else (401, "missing_token")
            )
        else:
            error_of(reply, 404, "not_found", BAD_REQUEST)
    assert scripted_engine.requests == []


@pytest.mark.parametrize("token", [True, False], ids=["token", "no token"])
async def test_other_methods_are_405_and_run_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, token: bool
) -> None:
    door = await open_door(scripted_engine.url)
    bearer = door.token() if token else None
    for path, allowed in ((CHAT, "POST"), ("/v1/models", "GET"), (f"/v1/models/{MODEL}", "GET")):
        for method in (
            "PUT",
            "PATCH",
            "DELETE",
            "OPTIONS",
            "TRACE",
            "PROPFIND",
            "GET" if allowed == "POST" else "POST",
        ):
            override = "X-HTTP-Method-Override: " + allowed
            reply = await once(door, request(method, path, bearer, override, f"X-Method: {allowed}"))
            error_of(reply, 405, "method_not_allowed", BAD_REQUEST)
            assert reply.headers["Allow"] == allowed
    assert scripted_engine.requests == []


@pytest.mark.parametrize(("target", "status"), [(CHAT, 405), ("/v1/models", 405), ("/openapi.json", 405), ("/", 404)])
async def test_head_is_answered_without_a_body(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, target: str, status: int
) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        reply = await client.ask(request("HEAD", target, door.token(), body=b""), bodiless=True)
        assert reply.status == status
        assert int(reply.headers["Content-Length"]) > 0
        again = await client.ask(request("POST", CHAT, door.token()))
        assert again.status == 200


async def test_connect_and_asterisk_reach_nothing(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    host = f"127.0.0.1:{scripted_engine.port}"
    for method, target in (("CONNECT", host), ("CONNECT", CHAT), ("OPTIONS", "*"), ("GET", host), ("POST", host)):
        reply = await once(door, request(method, target, door.token(), body=b""))
        assert reply.status in {400, 404, 405}
        error_of(reply, reply.status, reply.error["code"], BAD_REQUEST)
    assert scripted_engine.requests == []


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1:9090", "gateway.example:99999", "[::1", "a b", "*"])
async def test_no_host_reaches_anything_else(open_door: OpenDoor, scripted_engine: ScriptedEngine, host: str) -> None:
    door = await open_door(scripted_engine.url)

    def to(path: str) -> bytes:
        return request("POST", path, door.token()).replace(b"Host: gateway.example", b"Host: " + host.encode())

    assert (await once(door, to("/metrics"))).status in {400, 404}
    reply = await once(door, to(CHAT))
    assert reply.status in {200, 400}
    if reply.status == 200:
        assert scripted_engine.requests[0].header("host") == f"127.0.0.1:{scripted_engine.port}"


@pytest.mark.parametrize("target", [*SPELLINGS, CHAT, "/v1/models", f"/v1/models/{MODEL}", "/v1/usage", "/metrics"])
async def test_head_without_a_token_learns_what_others_learn_and_runs_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, target: str
) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        asked = await client.ask(request("HEAD", target, body=b""), bodiless=True)
        assert asked.status in {400, 404, 405}
        assert "WWW-Authenticate" not in asked.headers
        if asked.status != 400:
            other = await client.ask(request("DELETE", target, body=b""))
            assert (asked.status, asked.headers["Content-Length"]) == (other.status, other.headers["Content-Length"])
    assert scripted_engine.requests == []
    assert (await door.metrics()).total("gateway_auth_failures_total") == 0
