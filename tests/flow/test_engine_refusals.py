"""What engines send instead of answers: a word on the call is passed on, all else is its replica's failure.

The shapes are those of vLLM (captured), SGLang, TGI and llama.cpp.
"""

import asyncio
import json
from typing import Any

import pytest

from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Handler, ScriptedEngine, script
from tests.envelope import BAD_REQUEST, SERVER_ERROR, error_of
from tests.raw_client import raw_client
from tests.transcripts import (
    DONE,
    LAST_CHUNK,
    answer,
    chat,
    chat_role,
    chunked,
    dumps,
    event,
    head,
    http,
    serve_capture,
    sse,
    transcript,
)

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
TOO_LONG = "context_length_exceeded"


def ask(*, stream: bool) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}


def flat(message: str, *, param: str | None = None) -> bytes:
    return dumps({"object": "error", "message": message, "type": "BadRequestError", "param": param, "code": 400})


SGLANG_LONG = (
    "The input (1025 tokens) is longer than the model's context length (1024 tokens). "
    "Use a shorter input or enable --allow-auto-truncate."
)
SGLANG_SUM = (
    "Requested token count exceeds the model's maximum context length of 1024 tokens. You requested a total of 2048 "
    "tokens: 1024 tokens from the input messages and 1024 tokens for the completion."
)
SGLANG_QUEUE = "Input length (1025 tokens) exceeds the maximum allowed length (1018 tokens)."
VLLM_OLD = "The decoder prompt (length 1025) is longer than the maximum model length of 1024."
TGI_LONG = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 1024. Given: 1000 `inputs` tokens"
TGI_TOKENS = "Input validation error: `inputs` must have less than 1023 tokens. Given: 2000"
LLAMA_LONG = "request (1100 tokens) exceeds the available context size (1024 tokens), try increasing it"


def nested(message: str, kind: str = "invalid_request_error") -> bytes:
    return dumps({"error": {"code": 400, "message": message, "type": kind}})


def text(message: str) -> bytes:
    return dumps({"error": message, "error_type": "validation"})


def refused(body: bytes, status: int = 400) -> bytes:
    return http(body, status=f"{status} X")


# What the engine sends; the code, how the message begins, and the param that the client gets.
SAID: dict[str, tuple[bytes, str, str, str | None]] = {
    "vllm missing": (serve_capture("vllm/missing_messages"), "invalid_value", "1 validation error:", "body.messages"),
    "vllm range": (serve_capture("vllm/neg_max_tokens"), "invalid_value", "max_tokens must be", "max_tokens"),
    "vllm without param": (serve_capture("vllm/empty_messages"), "invalid_value", "Cannot apply chat template", None),
    "vllm long": (serve_capture("vllm/too_long"), TOO_LONG, "This model's maximum context", "input_tokens"),
    "vllm long, once": (refused(flat(VLLM_OLD)), TOO_LONG, VLLM_OLD, None),
    "sglang": (refused(flat("top_p must be", param="top_p")), "invalid_value", "top_p must be", "top_p"),
    "sglang long": (refused(flat(SGLANG_LONG)), TOO_LONG, SGLANG_LONG, None),
    "sglang sum": (refused(flat(SGLANG_SUM)), TOO_LONG, SGLANG_SUM, None),
    "sglang queue": (refused(flat(SGLANG_QUEUE)), TOO_LONG, SGLANG_QUEUE, None),
    "tgi": (refused(text("`top_p` must be > 0.0"), 422), "invalid_value", "`top_p` must be > 0.0", None),
    "tgi long": (refused(text(TGI_LONG), 422), TOO_LONG, TGI_LONG, None),
    "tgi tokens": (refused(text(TGI_TOKENS), 422), TOO_LONG, TGI_TOKENS, None),
    "llama.cpp": (refused(nested("bad grammar")), "invalid_value", "bad grammar", None),
    "llama.cpp type": (refused(nested("too long", "exceed_context_size_error")), TOO_LONG, "too long", None),
    "llama.cpp long": (refused(nested(LLAMA_LONG)), TOO_LONG, LLAMA_LONG, None),
    "413": (refused(flat("too large"), 413), "invalid_value", "too large", None),
    "fastapi": (refused(dumps({"detail": "There was an error"})), "invalid_value", "The engine refused", None),
    "fastapi list": (
        refused(dumps({"detail": [{"loc": ["body", "stop", 0], "msg": "too long"}, {"loc": 1}]}), 422),
        "invalid_value",
        "stop.0: too long",
        "stop.0",
    ),
    "fastapi list without a field": (
        refused(dumps({"detail": [{"loc": ["body"], "msg": "no object"}]}), 422),
        "invalid_value",
        "no object",
        None,
    ),
    "a param only": (refused(dumps({"error": {"param": "stop"}})), "invalid_value", "The engine refused", "stop"),
    "fastapi oddities": (refused(dumps({"detail": [{"loc": None, "msg": 1}]})), "invalid_value", "The engine", None),
    "fastapi nothing": (refused(dumps({"message": {"detail": []}})), "invalid_value", "The engine refused", None),
    "no json": (refused(b"<html>Bad Request</html>"), "invalid_value", "The engine refused", None),
    "no object": (refused(b"[1]"), "invalid_value", "The engine refused", None),
    "nothing": (refused(b""), "invalid_value", "The engine refused", None),
    "odd types": (
        refused(dumps({"error": {"message": {"a": 1}, "param": 7, "type": None}})),
        "invalid_value",
        "The engine refused",
        None,
    ),
}


@pytest.mark.parametrize("name", SAID)
@STREAM
async def test_an_engines_word_on_the_call_is_a_400_with_its_message_and_param(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, name: str, stream: bool
) -> None:
    said, code, message, param = SAID[name]
    scripted_engine.default = script(said)
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, ask(stream=stream))
    assert error_of(reply, 400, code, BAD_REQUEST, param=param).startswith(message)
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="refused") == len(scripted_engine.requests) == 1
    assert samples.total("gateway_requests_total", outcome="refused", status="400") == 1
    assert samples.total("gateway_tokens_total") == 0


WITHIN_A_STREAM: dict[str, tuple[dict[str, Any], str]] = {
    "vllm": ({"message": VLLM_OLD, "type": "BadRequestError", "param": None, "code": 400}, TOO_LONG),
    "tgi": ({"message": TGI_LONG, "http_status_code": 422}, TOO_LONG),
    "sglang": ({"object": "error", "message": "bad grammar", "type": "BadRequestError", "code": 400}, "invalid_value"),
}


@pytest.mark.parametrize("name", WITHIN_A_STREAM)
async def test_what_an_engine_says_of_the_call_in_a_streams_first_event_is_a_400_too(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: Any, name: str
) -> None:
    error, code = WITHIN_A_STREAM[name]
    second = await scripted_engines()
    scripted_engine.answer(sse([event({"error": error}), DONE]))
    door = await two_engines(open_door, scripted_engine, second)
    reply = await door.post(CHAT, ask(stream=True))
    assert error_of(reply, 400, code, BAD_REQUEST) == error["message"]
    assert second.requests == []
    assert (await door.idle()).total("gateway_tokens_total") == 0


async def two_engines(open_door: OpenDoor, first: ScriptedEngine, second: ScriptedEngine, **pool: Any) -> Door:
    """Open a gateway that asks `first` before `second`."""
    replicas = [{"url": first.url, "weight": 1000}, {"url": second.url}]
    return await open_door(pools={"main": {"replicas": replicas, **pool}})


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_wrong_call_is_not_tried_elsewhere(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: Any, status: int
) -> None:
    second = await scripted_engines()
    scripted_engine.default = script(http(flat("no"), status=f"{status} X"))
    door = await two_engines(open_door, scripted_engine, second)
    for stream in (False, True):
        error_of(await door.post(CHAT, ask(stream=stream)), 400, "invalid_value", BAD_REQUEST)
    assert (len(scripted_engine.requests), len(second.requests)) == (2, 0)


STATUSES = [201, 204, 301, 307, 401, 403, 404, 405, 408, 418, 424, 429, 500, 501, 502, 503, 504, 529, 599]


@STREAM
async def test_any_other_status_is_the_replicas_failure_and_another_answers(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: Any, *, stream: bool
) -> None:
    second = await scripted_engines()
    door = await two_engines(open_door, scripted_engine, second, breaker=None)
    for status in STATUSES:
        body = b"" if status == 204 else dumps({"error": {"message": "canary", "type": "x"}})
        scripted_engine.answer(http(body, status=f"{status} X", headers=[("location", second.url)]))
        assert (await door.post(CHAT, ask(stream=stream))).status == 200
    assert len(scripted_engine.requests) == len(second.requests) == len(STATUSES)
    results = await door.idle()
    assert results.total("gateway_upstream_attempts_total", result="status") == len(STATUSES) - 2
    assert results.total("gateway_upstream_attempts_total", result="overloaded") == 2


@pytest.mark.parametrize(
    ("statuses", "status", "code", "kind"),
    [
        ([401, 403], 502, "upstream_error", "upstream_error"),
        ([404, 424], 502, "upstream_error", "upstream_error"),
        ([500, 500], 502, "upstream_error", "upstream_error"),
        ([429, 500], 502, "upstream_error", "upstream_error"),
        ([500, 503], 502, "upstream_error", "upstream_error"),
        ([429, 503], 503, "overloaded", SERVER_ERROR),
        ([503, 503], 503, "overloaded", SERVER_ERROR),
    ],
)
@STREAM
async def test_where_no_replica_answers_the_client_learns_only_that(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: Any,
    *,
    statuses: list[int],
    status: int,
    code: str,
    kind: str,
    stream: bool,
) -> None:
    second = await scripted_engines()
    for engine, given in zip((scripted_engine, second), statuses, strict=True):
        engine.answer(http(flat("canary"), status=f"{given} X", headers=[("retry-after", "7000")]))
    door = await two_engines(open_door, scripted_engine, second)
    reply = await door.post(CHAT, ask(stream=stream))
    assert "canary" not in error_of(reply, status, code, kind)
    assert (await door.idle()).total("gateway_requests_total", outcome="upstream_failed", status=str(status)) == 1
    words = {f"{'overloaded' if given in (429, 503) else 'status'} {given}" for given in statuses}
    assert json.loads((await door.logged(1))[-1])["failed_by"] in words


WHOLE = answer("chat", "Hi", usage=(3, 1))
EVENTS = transcript(" Hi", usage=(3, 1))
HTML = b"<html><body>It works!</body></html>"

NOT_A_STREAM: dict[str, bytes] = {
    "json": http(WHOLE),
    "json labelled as a stream": sse([WHOLE]),
    "html": head(content_type="text/html", framing="length", length=len(HTML)) + HTML,
    "no content type": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    "empty": sse([]),
    "only done": sse([DONE]),
    "only comments": sse([b": ping\n\n", b":\n\n"]),
    "encoded": head(headers=[("content-encoding", "br")]) + b"".join(map(chunked, EVENTS)) + LAST_CHUNK,
    "half an event": sse([b": ping\n\n", EVENTS[0][:4]]),
}
NOT_WHOLE: dict[str, bytes] = {
    "stream": sse([chat_role(), chat(" Hi", finish_reason="stop"), DONE]),
    "empty": http(b""),
    "html": http(HTML),
    "truncated": http(WHOLE[:-1]),
    "garbage behind": http(WHOLE + b"x"),
    "list": http(b"[" + WHOLE + b"]"),
    "error": http(dumps({"error": {"message": "canary"}})),
    "encoded": http(WHOLE, headers=[("content-encoding", "gzip")]),
    "no choices": http(dumps({"id": "x", "object": "chat.completion"})),
}


@pytest.mark.parametrize(
    ("stream", "name"), [(True, name) for name in NOT_A_STREAM] + [(False, name) for name in NOT_WHOLE]
)
async def test_a_200_that_is_not_what_was_asked_for_is_a_failed_attempt(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: Any, *, stream: bool, name: str
) -> None:
    second = await scripted_engines()
    hostile: Handler = script((NOT_A_STREAM if stream else NOT_WHOLE)[name])
    scripted_engine.default = hostile
    door = await two_engines(open_door, scripted_engine, second)
    reply = await door.post(CHAT, ask(stream=stream))
    assert reply.status == 200
    assert b"Hello" in reply.body
    second.default = hostile
    error_of(await door.post(CHAT, ask(stream=stream)), 502, "upstream_error", "upstream_error")
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="malformed") == 3
    assert samples.total("gateway_tokens_total", kind="completion") == 2


async def test_a_connection_whose_engine_refused_a_body_unread_is_not_used_again(open_door: OpenDoor) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        reply = http(b'{"error":{"message":"Too long."}}', status="413 Content Too Large")
        writer.write(reply)  # keeps the connection, and reads no more of it
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    door = await open_door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with raw_client(door.port) as client:
            for content in ("x" * (16 * 2**20), "Hi"):
                body = dumps({"model": "tiny", "messages": [{"role": "user", "content": content}]})
                lines = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.token()}\r\n"
                lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                reply = await client.ask(lines.encode() + body)
                assert (reply.status, reply.error["message"]) == (400, "Too long.")
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()
