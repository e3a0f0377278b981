"""Real vLLMs that were killed, or told to stop, within answers: what they sent then is sent again through the gateway.

No answer looks whole that is not, others answer what was not begun, and all that was generated is charged.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.envelope import error_of
from tests.transcripts import DONE, capture, serve_capture

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the quick brown fox"}]}
STREAM = ASK | {"stream": True}
PROMPTS: dict[str, Any] = {"model": "tiny", "prompt": ["a", "b c"], "stream": True}
BOTH = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
OPTIONS = pytest.mark.parametrize("options", [{}, BOTH], ids=["on the client's behalf", "asked"])
# What `asked/chat` used, the stream with which a replica's fingerprint becomes known.
FIRST = 6

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]


@pytest.mark.parametrize(
    ("name", "path", "ask", "completion"),
    [("engine_killed", CHAT, STREAM, 13), ("engine_killed_prompts", COMPLETIONS, PROMPTS, 14)],
)
@OPTIONS
async def test_an_engine_killed_within_a_stream_is_charged_what_it_told(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    name: str,
    path: str,
    ask: dict[str, Any],
    completion: int,
    options: dict[str, Any],
) -> None:
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(serve_capture("vllm/asked/chat"))
    await door.post(CHAT, STREAM)
    scripted_engine.answer(serve_capture(f"vllm/endings/{name}"))
    reply = await door.post(path, ask | options)
    sent = capture(f"vllm/endings/{name}")[1]
    assert reply.body == (sent if options else without_usage(sent))
    assert b"EngineCore encountered an issue" in reply.body
    assert await told_of_broken(door) == completion


@pytest.mark.parametrize("stream", [True, False])
async def test_whoever_waits_in_the_queue_of_an_engine_that_is_killed_is_answered_by_another(
    open_door: OpenDoor, scripted_engines: MoreEngines, *, stream: bool
) -> None:
    name = "engine_killed_queued" if stream else "engine_killed_whole"
    reply = await answered_by_another(open_door, scripted_engines, name, stream=stream, result="status")
    assert reply == b"Hello world"


@OPTIONS
async def test_an_answer_that_an_engine_broke_off_to_stop_does_not_look_whole(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, options: dict[str, Any]
) -> None:
    scripted_engine.answer(serve_capture("vllm/endings/stopped"))
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, STREAM | options)
    sent = capture("vllm/endings/stopped")[1].removesuffix(DONE)
    came, error = cut_before_the_error(reply.body)
    assert came == (sent if options else without_usage(sent))
    assert b'"finish_reason":"abort"' in came
    assert error["code"] == "upstream_error"
    assert await told_of_broken(door) == 16


@pytest.mark.parametrize(("name", "n"), [("stopped_queued", 1), ("stopped_queued_choices", 2)])
async def test_done_without_an_end_of_each_choice_is_none(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, n: int
) -> None:
    scripted_engine.answer(serve_capture(f"vllm/endings/{name}"))
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, STREAM | BOTH | {"n": n})
    came, error = cut_before_the_error(reply.body)
    assert came == capture(f"vllm/endings/{name}")[1].removesuffix(DONE)
    assert error["code"] == "upstream_error"
    assert await told_of_broken(door) == 0


@pytest.mark.parametrize("name", ["stopped_whole", "stopped_whole_queued"])
async def test_a_whole_answer_that_is_not_whole_is_given_by_another(
    open_door: OpenDoor, scripted_engines: MoreEngines, name: str
) -> None:
    reply = await answered_by_another(open_door, scripted_engines, name, stream=False, result="unfinished")
    assert reply == b"Hello world"


async def test_where_no_other_can_answer_it_is_a_502_and_nothing_is_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(serve_capture("vllm/endings/stopped_whole"))
    door = await open_door(scripted_engine.url)
    error_of(await door.post(CHAT, ASK), 502, "upstream_error", "upstream_error")
    assert (await door.idle()).total("gateway_tokens_total") == 0


async def answered_by_another(
    open_door: OpenDoor,
    engines: MoreEngines,
    name: str,
    *,
    stream: bool,
    result: str,
) -> bytes:
    """Return the text that a client gets where the first engine answers with a capture, the second as a healthy one."""
    first, second = await engines(), await engines()
    first.answer(serve_capture(f"vllm/endings/{name}"))
    replicas = [{"url": first.url, "weight": 1000}, {"url": second.url}]
    door = await open_door(pools={"main": {"replicas": replicas}})
    reply = await door.post(CHAT, STREAM if stream else ASK)
    assert reply.status == 200
    assert (len(first.requests), len(second.requests)) == (1, 1)
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result=result) == 1
    assert samples.total("gateway_requests_total", outcome="ok") == 1
    assert samples.total("gateway_tokens_total", kind="completion") == 2
    return b"".join(re.findall(rb'"content":"([^"]*)"', reply.body)).strip()


async def told_of_broken(door: Door) -> float:
    """Return the completion tokens of one broken stream, all of them told by the engine."""
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken", status="200") == 1
    assert samples.total("gateway_streams_open") == 0
    assert samples.total("gateway_tokens_total", source="estimated") == 0
    before = FIRST * samples.total("gateway_requests_total", outcome="ok")
    return samples.total("gateway_tokens_total", kind="completion", source="engine") - before


def cut_before_the_error(stream: bytes) -> tuple[bytes, dict[str, str]]:
    """Return what came before the last event, and the error that it is."""
    came, _, last = stream.removesuffix(b"\n\n").rpartition(b"\n\n")
    assert DONE.strip() not in stream
    return came + b"\n\n", json.loads(last.removeprefix(b"data: "))["error"]


def without_usage(stream: bytes) -> bytes:
    """Return the events as they are written without usage; only JSON's own rules are used."""
    events = []
    chunks = [json.loads(part[6:]) for part in stream.split(b"\n\n") if part.startswith(b"data: {")]
    stamp = {key: chunk[key] for chunk in chunks for key in ("system_fingerprint",) if key in chunk}
    for part in stream.split(b"\n\n"):
        if part.startswith(b'data: {"id"'):
            chunk = json.loads(part[6:])
            if not chunk["choices"]:
                continue
            chunk.pop("usage")
            ends = any(choice["finish_reason"] for choice in chunk["choices"])
            compact = json.dumps(chunk | (stamp if ends else {}), separators=(",", ":"), ensure_ascii=False)
            events.append(b"data: " + compact.encode())
        else:
            events.append(part)
    return b"\n\n".join(events)
