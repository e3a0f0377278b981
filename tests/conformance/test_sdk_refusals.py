"""Calls that never began, as real client libraries see them: which error they raise, what it tells, when they retry."""

import asyncio
import json
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, reset
from tests.sdks import COMPLETIONS, SDKS, Call, Seen
from tests.transcripts import LAST_CHUNK, chunked, head, http, serve_capture, transcript

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
NOBODY = "http://127.0.0.1:1"
INVALID = "invalid_request_error"
each_sdk = pytest.mark.parametrize("sdk", SDKS)
each_call = pytest.mark.parametrize(
    ("sdk", "way"), [*((sdk, way) for sdk in SDKS for way in ("streamed", "whole")), *COMPLETIONS]
)


class Refusal(NamedTuple):
    """What a library must tell of a refusal: by its error's class, and what the gateway said."""

    error: str
    status: int
    code: str
    type: str
    message: str
    param: str | None = None


async def refused(refusal: Refusal, seen: Seen, door: Door) -> None:
    """Check that a caller saw this refusal, which is the door's last answer."""
    error = seen.error
    assert error is not None
    assert refusal.error in error.kinds
    assert (error.status, error.code, error.type, error.param) == (
        refusal.status,
        refusal.code,
        refusal.type,
        refusal.param,
    )
    assert refusal.message in error.message
    last = (await answers(door))[-1]
    assert (error.status, error.request_id) == (last["status"], last["inference_id"])


async def answers(door: Door) -> list[dict[str, Any]]:
    """Return what the access log says of all answers so far."""
    samples = await door.idle()
    count = int(samples.total("gateway_requests_total"))
    return [json.loads(line) for line in await door.logged(count) if '"inference_id"' in line]


FINAL: dict[str, tuple[Refusal, dict[str, Any]]] = {
    "a wrong value": (
        Refusal("BadRequestError", 400, "invalid_value", INVALID, "temperature: expected at most 2", "temperature"),
        {"temperature": 2.5},
    ),
    "a wrong token": (
        Refusal(
            "AuthenticationError",
            401,
            "invalid_token",
            "authentication_error",
            "The bearer token is not accepted here.",
        ),
        {"key": "sk-nonsense"},
    ),
    "a wrong model": (
        Refusal("NotFoundError", 404, "model_not_found", INVALID, "'nope' does not exist", "model"),
        {"model": "nope"},
    ),
    "a call that never fits": (
        Refusal("RateLimitError", 429, "request_exceeds_limit", "insufficient_quota", "more than limit small allows"),
        {"max_tokens": 1001},
    ),
}


TOO_LONG = Refusal(
    "BadRequestError", 400, "context_length_exceeded", INVALID, "maximum context length is 1024", "input_tokens"
)


@pytest.mark.parametrize("name", FINAL)
@each_call
async def test_what_cannot_succeed_is_told_and_not_sent_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str, name: str
) -> None:
    refusal, options = FINAL[name]
    rule = {"name": "small", "per": ["key"], "tokens": 1000, "window": "1h"}
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    await refused(refusal, await call(sdk, way, door, retries=2, **options), door)
    assert len(await answers(door)) == 1


@each_call
async def test_a_spent_limit_is_a_rate_limit_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    rule = {"name": "few", "per": ["key"], "requests": 1, "window": "1h"}
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    assert (await door.post(CHAT, ASK)).status == 200
    refusal = Refusal("RateLimitError", 429, "rate_limit_exceeded", "requests", "Limit few is reached")
    await refused(refusal, await call(sdk, way, door), door)


@each_call
async def test_a_dead_engine_is_a_server_error(open_door: OpenDoor, call: Call, sdk: str, way: str) -> None:
    door = await open_door(NOBODY)
    refusal = Refusal(
        "InternalServerError", 502, "upstream_error", "upstream_error", "The model's servers failed to answer this call"
    )
    await refused(refusal, await call(sdk, way, door), door)


@each_call
async def test_a_full_engine_is_a_server_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    scripted_engine.answer(http(b"{}", status="503 X"))
    door = await open_door(scripted_engine.url)
    refusal = Refusal(
        "InternalServerError", 503, "overloaded", "server_error", "Every server of this model is at capacity"
    )
    await refused(refusal, await call(sdk, way, door), door)


@each_call
async def test_a_prompt_too_long_for_the_engine_is_a_bad_request(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str, way: str
) -> None:
    scripted_engine.answer(serve_capture("vllm/too_long"))
    door = await open_door(scripted_engine.url)
    await refused(TOO_LONG, await call(sdk, way, door, retries=2), door)
    assert len(scripted_engine.requests) == 1


@each_sdk
async def test_a_limit_that_refills_is_waited_for(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str
) -> None:
    first, *rest = map(chunked, transcript(" a"))
    go_on = asyncio.Event()
    scripted_engine.answer(head(), first, go_on, *rest, LAST_CHUNK)
    rule = {"name": "one", "per": ["key"], "concurrent": 1}
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    other = asyncio.create_task(door.post(CHAT, ASK))
    await scripted_engine.asked()
    calling = asyncio.ensure_future(call(sdk, "streamed", door, retries=2))
    await door.until(lambda samples: samples.total("gateway_requests_total", status="429") == 1)
    go_on.set()
    await other
    assert await calling == Seen(texts=[" Hello world"], finished=["stop"])
    _, *tries = sorted(map(began, await answers(door)))  # the first is the other call
    assert len(tries) >= 2  # more where the slot was not free yet a second later
    assert all(later - earlier > 0.99 for earlier, later in pairwise(tries))  # Retry-After: 1; their own wait is 0.5 s


@each_sdk
async def test_a_failure_before_the_stream_is_tried_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, call: Call, sdk: str
) -> None:
    scripted_engine.answer(reset)
    door = await open_door(scripted_engine.url)
    assert await call(sdk, "streamed", door, retries=1) == Seen(texts=[" Hello world"], finished=["stop"])
    assert [one["status"] for one in await answers(door)] == [502, 200]


def began(answer: dict[str, Any]) -> float:
    return datetime.fromisoformat(answer["time"]).timestamp() - float(answer["duration_ms"]) / 1000
