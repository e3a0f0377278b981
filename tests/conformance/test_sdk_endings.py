"""Every ending of a stream as real client libraries see it: a good one as a whole answer, a broken one as an error."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.client.answer import Answer
from gateway.client.request import Request
from gateway.trail import Trail
from tests.doors import OpenDoor, listening
from tests.engines import ScriptedEngine, Step, close, never, reset
from tests.sdks import LANGCHAIN, SDKS, STREAMS, Call, Raised, Seen
from tests.transcripts import (
    DONE,
    LAST_CHUNK,
    Kind,
    chat,
    chat_role,
    chunked,
    completion,
    event,
    head,
    sse,
    transcript,
)

INCLUDE_USAGE: Any = {"include_usage": True}
each_stream = pytest.mark.parametrize(("sdk", "way"), STREAMS)
# LangChain shows the first of several choices only.
each_stream_of_choices = pytest.mark.parametrize(("sdk", "way"), [one for one in STREAMS if one[0] not in LANGCHAIN])

GOOD = (
    "[DONE]",
    "no [DONE]",
    "no [DONE], no chunks",
    "no [DONE], a known length",
    "a reset behind [DONE]",
    "comments and CRLF",
)


def good_ending(name: str, kind: Kind) -> tuple[Step, ...]:
    """Return the steps of an engine that says " Hello world" and its usage, and ends well."""
    events = transcript(" Hello", " world", kind=kind, usage=(3, 2))
    match name:
        case "no [DONE]":
            return (sse(events[:-1]),)
        case "no [DONE], no chunks":
            return (sse(events[:-1], framing="close"), close)
        case "no [DONE], a known length":
            return (sse(events[:-1], framing="length"),)
        case "a reset behind [DONE]":
            return (head(), *map(chunked, events), reset)
        case "comments and CRLF":
            return (sse([b": ping\r\n\r\n" + each.replace(b"\n", b"\r\n") for each in events]),)
        case _:
            return (sse(events),)


@pytest.mark.parametrize("sdk", SDKS)
async def test_an_answer_in_one_piece(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str
) -> None:
    door = await open_door(scripted_engine.url)
    seen = await call(sdk, "whole", door)
    request_id = None if sdk in LANGCHAIN else scripted_engine.requests[0].header("x-request-id")
    assert seen == Seen(texts=["Hello world"], finished=["stop"], usage=(3, 2), request_id=request_id)


@pytest.mark.parametrize("name", GOOD)
@each_stream
async def test_a_good_ending_is_a_whole_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str, name: str
) -> None:
    scripted_engine.answer(*good_ending(name, kind_of(way)))
    door = await open_door(scripted_engine.url)
    seen = await call(sdk, way, door, stream_options=INCLUDE_USAGE)
    assert seen == Seen(texts=[" Hello world"], finished=["stop"], usage=(3, 2))


@each_stream
async def test_a_caller_who_did_not_ask_for_usage_sees_none(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    scripted_engine.answer(sse(transcript(" Hello", " world", kind=kind_of(way), usage=(3, 2), continuous=True)))
    seen = await call(sdk, way, await open_door(scripted_engine.url))
    assert seen == Seen(texts=[" Hello world"], finished=["stop"])


@each_stream_of_choices
async def test_a_clean_end_is_good_once_every_choice_finished(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    kind = kind_of(way)
    roles = [chat_role(index=index) for index in range(2)] if kind == "chat" else []
    first = [*roles, token(kind, " a"), token(kind, " b", index=1), token(kind, "", finish_reason="stop")]
    last = token(kind, "", index=1, finish_reason="stop")
    scripted_engine.answer(sse([*first, last]))
    scripted_engine.answer(sse(first))
    door = await open_door(scripted_engine.url)
    assert await call(sdk, way, door, n=2) == Seen(texts=[" a", " b"], finished=["stop", "stop"])
    seen = await call(sdk, way, door, n=2)
    assert (seen.texts, seen.finished) == ([" a", " b"], ["stop"])
    tells_that(seen.error, *FAILED)


def own_error(error: dict[str, Any], *, then: bytes = chunked(DONE)) -> tuple[Step, ...]:
    """Return the steps of an engine that says inside the stream that it failed."""
    return (chunked(event({"error": {"message": ILL, **error}})), then + LAST_CHUNK)


FAILED = ("upstream_error", "The model's server failed; the answer is incomplete.")
STALLED = ("upstream_timeout", "The model's server stopped sending; the answer is incomplete.")
ILL = "The engine is ill."
VLLM = {"type": "InternalServerError", "param": None, "code": 500}
# What an engine does after " a b", and the code and message of the error that its client's caller gets.
BROKEN: dict[str, tuple[tuple[Step, ...], str | None, str]] = {
    "a reset": ((reset,), *FAILED),
    "a FIN": ((close,), *FAILED),
    "garbage": ((b"zz\r\n",), *FAILED),
    "a stall": ((never,), *STALLED),
    "a clean end": ((LAST_CHUNK,), *FAILED),
    "vLLM's error": (own_error(VLLM), "500", ILL),
    "SGLang's error": (own_error({"object": "error", **VLLM}), "500", ILL),
    "TGI's error": (own_error({"http_status_code": 422}), None, ILL),
    "llama.cpp's error": (own_error({"code": 500, "type": "server_error"}, then=b""), "500", ILL),
}


@pytest.mark.parametrize("name", BROKEN)
@each_stream
async def test_a_broken_ending_is_an_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str, name: str
) -> None:
    steps, code, message = BROKEN[name]
    scripted_engine.answer(in_one_piece(begun(kind_of(way))), *steps)
    timeouts = {"idle": "100ms"} if name == "a stall" else {}
    door = await open_door(scripted_engine.url, pools={"main": {"timeouts": timeouts}})
    seen = await call(sdk, way, door, retries=2)
    tells_that(seen.error, code, message)
    broke_after_what_came(seen, sdk, way)
    assert len(scripted_engine.requests) == 1  # no library sends a call again whose answer has begun


@pytest.mark.parametrize("framing", ["length", "close"])
@each_stream
async def test_a_body_cut_short_is_an_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str, framing: Any
) -> None:
    scripted_engine.answer(head(framing=framing, length=10_000), *begun(kind_of(way)), close)
    seen = await call(sdk, way, await open_door(scripted_engine.url))
    tells_that(seen.error, *FAILED)
    broke_after_what_came(seen, sdk, way)


@each_stream
async def test_a_gateway_that_stops_is_an_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    scripted_engine.answer(in_one_piece(begun(kind_of(way))), never)
    door = await open_door(scripted_engine.url, server={"drain_timeout": "100ms"})
    calling = asyncio.ensure_future(call(sdk, way, door))
    await scripted_engine.asked()
    await door.until(lambda samples: samples.total("gateway_streams_open") == 1)
    await door.gateway.stop()
    seen = await calling
    tells_that(seen.error, "draining", "This gateway is restarting; the answer is incomplete. Send the call again.")
    broke_after_what_came(seen, sdk, way)


@each_stream
async def test_a_cut_connection_is_an_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    async def defective(_request: Request, answer: Answer, _trail: Trail) -> None:
        answer.begin(200, "Content-Type: text/event-stream\r\n")
        answer.send(b"".join(begun(kind_of(way))))
        raise RuntimeError("canary")

    door = await open_door(scripted_engine.url)
    async with listening(door, defective) as port:
        seen = await call(sdk, way, replace(door, url=f"http://127.0.0.1:{port}"))
    broke_after_what_came(seen, sdk, way)
    assert seen.error is not None
    if sdk.startswith("node"):
        assert seen.error.message == "terminated"  # by fetch; the package hands it on as it is
    else:
        assert "APIConnectionError" in seen.error.kinds


@pytest.mark.parametrize("fragment", [b'data: {"id":"c","ob', 'data: {"id":"é'.encode()[:-1]])
@each_stream
async def test_a_break_within_an_event_is_an_error_though_none_that_tells_why(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str, fragment: bytes
) -> None:
    scripted_engine.answer(head(), *map(chunked, begun(kind_of(way))), chunked(fragment), reset)
    seen = await call(sdk, way, await open_door(scripted_engine.url))
    broke_after_what_came(seen, sdk, way)
    assert seen.error is not None
    # The fragment is closed off before the error event, and is the first that the libraries cannot decode.
    node = "OpenAIError" if way == "collected" else "SyntaxError"
    assert seen.error.kinds[-1] == (node if sdk.startswith("node") else "ValueError")


def kind_of(way: str) -> Kind:
    return "completions" if way == "completions" else "chat"


def token(kind: Kind, text: str, *, index: int = 0, finish_reason: str | None = None) -> bytes:
    said = chat if kind == "chat" else completion
    return said(text, index=index, finish_reason=finish_reason)


def begun(kind: Kind) -> list[bytes]:
    """Return the events of an answer that has said " a b"."""
    return [*([chat_role()] if kind == "chat" else []), token(kind, " a"), token(kind, " b")]


def in_one_piece(events: list[bytes]) -> bytes:
    """Return the beginning of an answer as what comes at once: no time limit passes within it."""
    return head() + b"".join(map(chunked, events))


def tells_that(error: Raised | None, code: str | None, message: str) -> None:
    """Check that a library raised its own error for a broken stream, with the code and message that it came with."""
    assert error is not None
    assert error.kinds == ("APIError", "OpenAIError")
    assert (error.code, error.message) == (code, message)


def broke_after_what_came(seen: Seen, sdk: str, way: str) -> None:
    """Check that a caller got " a b", but for LangChain's that waits for a whole answer, and then an error."""
    nothing = sdk in LANGCHAIN and way == "collected"
    assert seen.texts == ([] if nothing else [" a b"])
    assert (seen.finished, seen.usage) == ([], None)
    assert seen.error is not None
