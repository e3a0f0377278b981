"""Streams that break: what came is relayed, the break is visible, and what was generated is charged."""

import json

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, Step, close, never, reset
from tests.transcripts import (
    DONE,
    LAST_CHUNK,
    chat,
    chat_role,
    chunked,
    error_event,
    head,
    sse,
    transcript,
    usage_event,
)

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
TOKENS = [chat_role(), chat(" a"), chat(" b"), chat(" c")]


def last_error(reply: Reply, *, after: bytes) -> dict[str, str]:
    """Return the error that follows `after`; it must be an event of its own, and the stream's last."""
    assert reply.body.startswith(after)
    rest = reply.body.removeprefix(after).lstrip(b"\n")
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"\n\n")
    assert b"[DONE]" not in reply.body
    error: dict[str, str] = json.loads(rest.removeprefix(b"data: "))["error"]
    return error


async def broken(door: Door, reason: str) -> float:
    """Return how many completion tokens the broken call was charged."""
    samples = await door.idle()
    assert samples.total("gateway_answers_broken_total") == 1
    assert samples.total("gateway_answers_broken_total", reason=reason) == 1
    assert samples.total("gateway_requests_total", outcome="broken", status="200") == 1
    assert samples.total("gateway_streams_open") == 0
    return samples.total("gateway_tokens_total", kind="completion")


@pytest.mark.parametrize(
    ("last", "code", "reason"),
    [
        ((reset,), "upstream_error", "reset"),
        ((close,), "upstream_error", "reset"),
        ((b"zz\r\n",), "upstream_error", "garbage"),
        ((LAST_CHUNK,), "upstream_error", "unfinished"),
        ((never,), "upstream_timeout", "idle_timeout"),
    ],
    ids=["reset", "fin", "bad chunk", "clean end without a finish reason", "stall"],
)
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_a_broken_stream_ends_with_an_error_event(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, last: tuple[Step, ...], code: str, reason: str, count: int
) -> None:
    # In one piece: a stall is what comes, or rather does not, after all of it.
    scripted_engine.answer(head() + b"".join(map(chunked, TOKENS[:count])), *last)
    timeouts = {"idle": "200ms"} if never in last else {}
    door = await open_door(scripted_engine.url, pools={"main": {"timeouts": timeouts}})
    reply = await door.post(CHAT, ASK)
    error = last_error(reply, after=b"".join(TOKENS[:count]))
    assert error["code"] == code
    assert error["type"] == error["error_type"] == "upstream_error"
    assert await broken(door, reason) == count - 1


@pytest.mark.parametrize(
    "fragment", [b'data: {"id":"c","obj', b"data: {}", b"data: {}\n", "data: é".encode()[:-1], b"data: {}\r"]
)
async def test_a_half_sent_event_is_closed_before_the_error(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, fragment: bytes
) -> None:
    scripted_engine.answer(head(), chunked(TOKENS[1]), chunked(fragment), reset)
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, ASK)
    closed = reply.body.removeprefix(TOKENS[1] + fragment)
    assert closed.startswith(b"\n\n")
    assert last_error(reply, after=TOKENS[1] + fragment)["code"] == "upstream_error"


async def test_a_length_that_lies_is_a_broken_stream(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(framing="length", length=10_000), TOKENS[1], close)
    door = await open_door(scripted_engine.url)
    assert last_error(await door.post(CHAT, ASK), after=TOKENS[1])["code"] == "upstream_error"


@pytest.mark.parametrize("done", [[DONE], []], ids=["vllm", "llama.cpp"])
async def test_the_engines_own_error_is_passed_on_and_booked_as_broken(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, done: list[bytes]
) -> None:
    events = [*TOKENS, error_event(), *done]
    scripted_engine.answer(sse(events))
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, ASK)).body == b"".join(events)
    assert await broken(door, "engine_error") == 3


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_a_finish_reason_without_done_is_a_good_end(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, framing: str
) -> None:
    events = transcript(" a", " b")[:-1]
    scripted_engine.answer(sse(events, framing="close" if framing == "close" else "chunked"), close)
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, ASK)).body == b"".join(events)
    assert (await door.idle()).total("gateway_requests_total", outcome="ok") == 1


async def test_a_reset_after_done_loses_nothing(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    events = transcript(" a", usage=(3, 1))
    scripted_engine.answer(head(), *map(chunked, events), reset)
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, ASK | {"stream_options": {"include_usage": True}})).body == b"".join(events)
    assert (await door.idle()).total("gateway_requests_total", outcome="ok") == 1


async def test_a_broken_stream_is_charged_what_the_engine_last_said(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = transcript(" a", " b", " c", usage=(7, 3), continuous=True)[:3]
    scripted_engine.answer(head(), *map(chunked, events), reset)
    door = await open_door(scripted_engine.url)
    await door.post(CHAT, ASK | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2
    assert samples.total("gateway_tokens_total", kind="prompt", source="engine") == 7


@pytest.mark.parametrize("last", [[error_event(), DONE], [chat("", finish_reason="stop"), DONE]], ids=["error", "end"])
async def test_a_running_total_holds_though_the_last_events_tell_none(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, last: list[bytes]
) -> None:
    events = transcript(" a", " b", " c", usage=(7, 3), continuous=True)[:3]
    scripted_engine.answer(sse([*events, *last]))
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, ASK)
    assert reply.body == b"".join([*transcript(" a", " b", " c")[:3], *last])
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2
    assert samples.total("gateway_tokens_total", kind="prompt", source="engine") == 7
    assert samples.total("gateway_usage_missing_total") == 0


async def test_a_stream_without_usage_is_estimated_and_says_so(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(sse(transcript(*"abcdef")))
    door = await open_door(scripted_engine.url)
    await door.post(CHAT, ASK | {"stream_options": {"include_usage": True}})
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 6
    assert samples.total("gateway_usage_missing_total", reason="not_reported") == 1


async def test_a_broken_connection_is_not_used_again(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(head(), chunked(TOKENS[1]), b"zz\r\n")
    await door.post(CHAT, ASK)
    await door.post(CHAT, ASK)
    first, second = scripted_engine.requests
    assert first.connection is not second.connection
    await first.connection.gone(within_s=PROMPTLY_S)


async def test_usage_after_the_last_event_counts_though_the_engine_dies(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), chunked(b"".join([*TOKENS, usage_event(9, 3)])), reset)
    door = await open_door(scripted_engine.url)
    await door.post(CHAT, ASK | {"stream_options": {"include_usage": True}})
    assert (await door.idle()).total("gateway_tokens_total", kind="prompt", source="engine") == 9


@pytest.mark.parametrize("cut", [b"", b"\n"])
async def test_a_reset_within_the_blank_line_behind_done_loses_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, cut: bytes
) -> None:
    *events, _ = transcript(" a", " b")
    body = b"".join(events) + b"data: [DONE]" + cut
    scripted_engine.answer(head(), chunked(body), reset)
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, ASK)).body == body
    assert (await door.idle()).total("gateway_requests_total", outcome="ok") == 1
