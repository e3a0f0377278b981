"""Answers that end well: what the client gets is what the engine sent, and the books hold what it said."""

from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, OpenDoor
from tests.engines import ScriptedEngine, close, drip
from tests.transcripts import LAST_CHUNK, Kind, answer, capture, chunked, head, http, serve_capture, sse, transcript

CHAT_ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, CHAT_ASK),
    "completions": (COMPLETIONS, {"model": "tiny", "prompt": "Hi"}),
}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_whole_answer_is_the_engines_bytes(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, kind: Kind
) -> None:
    body = answer(kind, "Hello", usage=(3, 1))
    scripted_engine.answer(http(body))
    door = await open_door(scripted_engine.url)
    path, ask = ASKS[kind]
    reply = await door.post(path, ask)
    assert (reply.status, reply.body) == (200, body)
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="prompt", source="engine") == 3
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 1
    assert samples.total("gateway_requests_total", endpoint=kind, outcome="ok", status="200", tenant="acme") == 1


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_stream_is_the_engines_bytes(open_door: OpenDoor, scripted_engine: ScriptedEngine, kind: Kind) -> None:
    events = transcript(" Hé", "\u2028llo", usage=(3, 2), kind=kind)
    scripted_engine.answer(sse(events))
    door = await open_door(scripted_engine.url)
    path, ask = ASKS[kind]
    reply = await door.post(path, ask | STREAMED)
    assert (reply.status, reply.body) == (200, b"".join(events))
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2
    assert samples.total("gateway_streams_open") == 0


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
async def test_a_stream_cut_at_every_byte_arrives_whole(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, ending: bytes
) -> None:
    stream = b"".join(transcript(" \U0001f600", usage=(3, 1))).replace(b"\n", ending)
    door = await open_door(scripted_engine.url)
    for cut in range(1, len(stream), 7 if ending != b"\n" else 1):
        scripted_engine.answer(head(), drip(chunked(stream[:cut]), size=cut + 99), chunked(stream[cut:]), LAST_CHUNK)
        reply = await door.post(CHAT, CHAT_ASK | STREAMED)
        assert reply.body == stream
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion") == len(scripted_engine.requests)


async def test_a_stream_of_single_bytes_arrives_whole(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    stream = transcript(" Hé", usage=(3, 1))
    scripted_engine.answer(drip(sse(stream)))
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, CHAT_ASK | STREAMED)).body == b"".join(stream)


@pytest.mark.parametrize("framing", ["close", "length"])
async def test_other_framings_of_a_stream(open_door: OpenDoor, scripted_engine: ScriptedEngine, framing: str) -> None:
    events = transcript(" Hi", usage=(3, 1))
    scripted_engine.answer(sse(events, framing="close" if framing == "close" else "length"), close)
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, CHAT_ASK | STREAMED)).body == b"".join(events)
    assert (await door.idle()).total("gateway_requests_total", outcome="ok") == 1


@pytest.mark.parametrize(
    ("name", "path", "tokens"),
    [
        ("vllm/chat_stream_usage", CHAT, 4),
        ("vllm/completions_stream", COMPLETIONS, 3),
        ("llamacpp/chat_stream_usage", CHAT, 12),
    ],
)
async def test_captures_of_real_engines_go_through_untouched(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, path: str, tokens: int
) -> None:
    scripted_engine.answer(serve_capture(name))
    door = await open_door(scripted_engine.url)
    ask = CHAT_ASK if path == CHAT else ASKS["completions"][1]
    assert (await door.post(path, ask | STREAMED)).body == capture(name)[1]
    assert (await door.idle()).total("gateway_tokens_total", kind="completion", source="engine") == tokens


async def test_comments_before_the_first_event_are_relayed_with_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = [b": keep-alive\n\n", *transcript(" Hi", usage=(3, 1))]
    scripted_engine.answer(sse(events))
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, CHAT_ASK | STREAMED)).body == b"".join(events)


async def test_many_calls_share_few_connections(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    for _ in range(10):
        assert (await door.post(CHAT, CHAT_ASK | STREAMED)).status == 200
    assert len({request.connection.id for request in scripted_engine.requests}) == 1


async def test_the_engine_gets_the_clients_bytes_and_an_alias_becomes_its_name(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    body = '{ "messages" : [{"role":"user","content":"Hé \\u00e9"}],\n "x_new": {"model": "tiny"}, "model":"%s","n":1 }'
    for name in ("tiny", "acme/tiny"):
        assert (await door.post(CHAT, (body % name).encode())).status == 200
        assert scripted_engine.requests[-1].body == (body % "tiny").encode()


async def test_of_the_clients_headers_only_the_allowed_go_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, pools={"main": {"api_key": "engine-secret"}})
    secret = {
        "Cookie": "a=b", "Proxy-Authorization": "Basic x", "X-Api-Key": "k", "X-Vllm-Priority": "0",
        "X-data-parallel-rank": "3", "X-Request-Id": "mine", "X-Forwarded-For": "1.2.3.4", "TE": "trailers",
        "Forwarded": "for=1", "X-Secret": "1", "Connection": "X-Secret", "Keep-Alive": "timeout=5", "Trailer": "X-A",
        "Upgrade": "h2c", "INFERENCE-ID": "mine", "X-Tenant": "other", "X-Model": "big", "Priority": "u=0",
        "x-gateway-model": "big", "x-request-timeout-ms": "60000", "X-Replica": "gpu-7", "Via": "1.1 evil",
    }  # fmt: skip
    reply = await door.post(
        CHAT, CHAT_ASK, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", **secret
    )
    names = [name for name, _ in scripted_engine.requests[0].headers]
    assert sorted(names) == [
        "accept", "authorization", "content-length", "content-type", "host", "traceparent", "x-request-id",
    ]  # fmt: skip
    received = scripted_engine.requests[0]
    assert received.header("authorization") == "Bearer engine-secret"
    assert received.header("host") == f"127.0.0.1:{scripted_engine.port}"
    assert received.header("x-request-id") == reply.headers["INFERENCE-ID"] != "mine"


async def test_of_the_engines_headers_only_the_content_type_comes_back(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    private = [
        ("set-cookie", "a=b"), ("x-internal-host", "gpu-7"), ("connection", "x-foo"), ("x-foo", "1"),
        ("server", "uvicorn"), ("x-powered-by", "vllm"), ("via", "1.1 gpu-7"), ("inference-id", "the engine's"),
        ("date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("keep-alive", "timeout=5"), ("x-request-id", "the engine's"),
    ]  # fmt: skip
    door = await open_door(scripted_engine.url)
    every = {"content-type", "date", "inference-id", "x-request-id", "x-gateway-model"}
    scripted_engine.answer(http(answer("chat", "Hi", usage=(3, 1)), headers=private))
    scripted_engine.answer(head(headers=private), *map(chunked, transcript(" Hi")), LAST_CHUNK)
    whole, stream = await door.post(CHAT, CHAT_ASK), await door.post(CHAT, CHAT_ASK | STREAMED)
    for reply, more in (
        (whole, {"content-length"}),
        (stream, {"transfer-encoding", "cache-control", "x-accel-buffering"}),
    ):
        assert {name.lower() for name in reply.headers if not name.lower().startswith("x-ratelimit")} == every | more
        assert "1970" not in reply.headers["Date"]
        assert reply.headers["x-request-id"] == reply.headers["INFERENCE-ID"]


async def test_every_answer_has_an_id_of_its_own(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    replies = [await door.post(CHAT, CHAT_ASK) for _ in range(3)]
    replies += [await door.post(CHAT, b"{"), await door.get("/nowhere"), await door.get("/v1/models")]
    ids = {reply.headers["INFERENCE-ID"] for reply in replies}
    assert len(ids) == len(replies)
    assert all(reply.headers["x-request-id"] == reply.headers["INFERENCE-ID"] for reply in replies)


async def test_each_call_leaves_one_line_in_the_access_log(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, CHAT_ASK | STREAMED)
    (line,) = [line for line in await door.logged(1) if reply.headers["INFERENCE-ID"] in line]
    assert '"tenant":"acme"' in line
    assert '"completion_tokens":2' in line
    assert door.token() not in line
