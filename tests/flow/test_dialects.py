"""Engines other than vLLM: a client gets the bytes it would get without the gateway, and the books hold their word."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests import dialects
from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor
from tests.engines import Connection, Handler, Received, ScriptedEngine, drip
from tests.transcripts import http, sse

HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
ONCE = {"model": "tiny", "prompt": "Once", "stream": True}
TOOLS = HI | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}

# Engine, path, body, and how it streams.
STREAMS: dict[str, tuple[str, str, dict[str, Any], dialects.Events]] = {
    "TGI's chat": ("tgi", CHAT, HI, dialects.tgi_chat),
    "TGI's chat without nulls": ("tgi", CHAT, HI, partial(dialects.tgi_chat, nulls=False)),
    "TGI's completions": ("tgi", COMPLETIONS, ONCE, dialects.tgi_completions),
    "TGI's completions of two prompts": ("tgi", COMPLETIONS, ONCE | {"prompt": ["a", "b"]}, dialects.tgi_two_prompts),
    "TGI's chat before axum 0.7": ("tgi", CHAT, HI, dialects.tgi_chat_without_spaces),
    "TGI's completions before axum 0.7": ("tgi", COMPLETIONS, ONCE, dialects.tgi_completions_without_spaces),
    "SGLang's chat": ("sglang", CHAT, HI, dialects.sglang_chat),
    "SGLang's chat with tools": ("sglang", CHAT, TOOLS, dialects.sglang_tools),
    "SGLang's chat with an extension": ("sglang", CHAT, HI, dialects.sglang_extension),
    "SGLang's completions": ("sglang", COMPLETIONS, ONCE, dialects.sglang_completions),
    "Ollama's chat": ("openai", CHAT, HI, dialects.ollama_chat),
    "Ollama's completions": ("openai", COMPLETIONS, ONCE, dialects.ollama_completions),
    "llama.cpp's chat": ("llamacpp", CHAT, HI, dialects.llamacpp_chat),
    "Azure's chat": ("openai", CHAT, HI, dialects.azure_chat),
    "a chat with spaces": ("openai", CHAT, HI, dialects.spaced_chat),
}
OPTIONS = pytest.mark.parametrize(
    "options",
    [None, {"include_usage": False}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
    ids=["nothing", "no usage", "usage", "running totals"],
)


def asked_by(body: dict[str, Any]) -> dict[str, bool]:
    options = body.get("stream_options") or {}
    told = bool(options.get("include_usage"))
    return {"told": told, "running": told and bool(options.get("continuous_usage_stats"))}


def streaming(events: dialects.Events, *, small: bool) -> Handler:
    """Return a handler that streams what its engine would for the body that comes."""

    async def handler(request: Received, connection: Connection) -> None:
        stream = sse(events(**asked_by(request.json())))
        step: Callable[[Connection], Awaitable[None]] = drip(stream, size=1 if small else len(stream))  # type: ignore[assignment]
        await step(connection)

    return handler


async def booked(door: Door) -> dict[str, float]:
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", source="estimated") == 0
    return {kind: samples.total("gateway_tokens_total", kind=kind) for kind in ("prompt", "completion")}


@OPTIONS
@pytest.mark.parametrize("small", [False, True], ids=["whole", "single bytes"])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_is_what_the_engine_gives_without_us(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, options: Any, *, small: bool
) -> None:
    engine, path, body, events = STREAMS[name]
    scripted_engine.answer_with(streaming(events, small=small))
    door = await open_door(scripted_engine.url, pools={"main": {"engine": engine}})
    body = body | ({} if options is None else {"stream_options": options})
    reply = await door.post(path, body)
    assert reply.body == b"".join(events(**asked_by(body)))
    assert await booked(door) == {"prompt": dialects.PROMPT, "completion": dialects.COMPLETION}
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="ok") == 1
    assert samples.total("gateway_usage_missing_total") == 0


ERRORS: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "SGLang's": ("sglang", dialects.sglang_error),
    "TGI's": ("tgi", dialects.tgi_error),
    "llama.cpp's": ("llamacpp", dialects.llamacpp_error),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_an_engines_own_error_in_a_stream_is_passed_on_and_nothing_follows_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    engine, events = ERRORS[name]
    scripted_engine.answer(sse(events()))
    door = await open_door(scripted_engine.url, pools={"main": {"engine": engine}})
    reply = await door.post(CHAT, HI | {"stream_options": {"include_usage": True}})
    assert reply.body == b"".join(events())
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken") == 1
    assert 1 <= samples.total("gateway_tokens_total", kind="completion", source="estimated") <= 2


async def test_an_error_that_ollama_swallows_does_not_look_like_an_end(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    came = b"".join(dialects.ollama_error())
    scripted_engine.answer(sse(dialects.ollama_error()))
    door = await open_door(scripted_engine.url, pools={"main": {"engine": "openai"}})
    reply = await door.post(CHAT, HI | {"stream_options": {"include_usage": True}})
    assert reply.body.startswith(came)
    assert b'"code":"upstream_error"' in reply.body.removeprefix(came)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken") == 1
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 2


async def test_zeros_that_never_become_figures_are_no_usage(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    *events, _, done = dialects.ollama_completions(told=True)
    scripted_engine.answer(sse([*events, done]))
    door = await open_door(scripted_engine.url, pools={"main": {"engine": "openai"}})
    reply = await door.post(COMPLETIONS, ONCE | {"stream_options": {"include_usage": True}})
    assert reply.body == b"".join([*events, done])
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 2
    assert samples.total("gateway_usage_missing_total", reason="not_reported") == 1


# What each engine says of a call that is wrong.
WRONG: dict[str, tuple[str, str, bytes]] = {
    "SGLang's": (
        "sglang",
        "400 Bad Request",
        b'{"object":"error","message":"top_p must be in (0, 1]","type":"BadRequestError","param":null,"code":400}',
    ),
    "TGI's": (
        "tgi",
        "422 X",
        b'{"error":"Input validation error: `top_p` must be in (0, 1]","error_type":"validation"}',
    ),
    "llama.cpp's": (
        "llamacpp",
        "400 Bad Request",
        b'{"error":{"code":400,"message":"top_p must be in (0, 1]","type":"invalid_request_error"}}',
    ),
    "Ollama's": (
        "openai",
        "400 Bad Request",
        b'{"error":{"message":"top_p must be in (0, 1]","type":"invalid_request_error","param":null,"code":null}}',
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_call_that_an_engine_finds_wrong_is_a_400_with_its_words(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    engine, status, body = WRONG[name]
    scripted_engine.answer(http(body, status=status))
    door = await open_door(scripted_engine.url, pools={"main": {"engine": engine}})
    reply = await door.post(CHAT, HI)
    assert (reply.status, reply.error["code"]) == (400, "invalid_value")
    assert reply.error["message"].endswith("must be in (0, 1]")
    assert len(scripted_engine.requests) == 1
