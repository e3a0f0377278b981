"""Usage asked on the client's behalf: the books are the engine's own, the client's bytes are as without the gateway."""

import json
import re
from typing import Any

import pytest

from gateway.engine.server import SimulatedEngine
from tests.doors import CHAT, COMPLETIONS, OpenDoor
from tests.engines import ScriptedEngine, drip, script
from tests.transcripts import DONE, FINGERPRINT, Kind, answer, chat, chat_role, dumps, http, sse, transcript

PROMPTS: dict[Kind, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "How many words?"}]},
    "completions": {"prompt": "How many words?"},
}
PATHS: dict[Kind, str] = {"chat": CHAT, "completions": COMPLETIONS}


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}, "absent"])
async def test_streams_equal_those_taken_directly(open_door: OpenDoor, kind: Kind, options: Any) -> None:
    engine = SimulatedEngine("tiny")
    port = await engine.start()
    door = await open_door(f"http://127.0.0.1:{port}")
    ask = {"model": "tiny", "stream": True, "max_tokens": 9, "seed": 7, **PROMPTS[kind]}
    if options != "absent":
        ask["stream_options"] = options
    async with door.session.post(f"http://127.0.0.1:{port}{PATHS[kind]}", json=ask) as response:
        direct = await response.read()
    reply = await door.post(PATHS[kind], ask)
    assert same(reply.body) == same(direct)
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 9
    assert samples.total("gateway_usage_missing_total") == 0
    await engine.close()


async def test_several_choices_equal_those_taken_directly(open_door: OpenDoor) -> None:
    engine = SimulatedEngine("tiny")
    port = await engine.start()
    door = await open_door(f"http://127.0.0.1:{port}")
    ask = {"model": "tiny", "stream": True, "max_tokens": 4, "n": 3, "seed": 7, **PROMPTS["chat"]}
    async with door.session.post(f"http://127.0.0.1:{port}{CHAT}", json=ask) as response:
        direct = await response.read()
    assert same((await door.post(CHAT, ask)).body) == same(direct)  # not asked: its fingerprint is not known yet
    assert same((await door.post(CHAT, ask)).body) == same(direct)
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 12
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 12
    await engine.close()


NO_NAME = [chat_role(), chat(" a", finish_reason="stop"), DONE]


@pytest.mark.parametrize(
    ("n", "first"),
    [
        (2, sse([chat(" a", index=n, finish_reason="stop", system_fingerprint=FINGERPRINT) for n in (0, 1)] + [DONE])),
        (1, http(answer("chat", "a", usage=(3, 1)))),
        (1, sse(transcript(" a", usage=(3, 1), continuous=True))),
        (1, sse(NO_NAME)),  # an old vLLM: it names no build, so nothing moves
    ],
    ids=["several choices", "whole", "stream", "no name"],
)
async def test_several_choices_are_asked_for_once_any_answer_told_the_fingerprint(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, n: int, first: bytes
) -> None:
    door = await open_door(scripted_engine.url, pools={"main": {"health": {"interval": "50ms"}}})
    ask = {"model": "tiny", "stream": b"event-stream" in first, "n": n, **PROMPTS["chat"]}
    scripted_engine.answer(first)
    await door.post(CHAT, ask)
    several = ask | {"n": 2, "stream": True}
    await door.post(CHAT, several)
    scripted_engine.probe = script(http(b"", status="503 X"))
    await door.until(lambda samples: samples.total("gateway_replica_up") == 0)
    scripted_engine.probe = script(http(b""))
    await door.until(lambda samples: samples.total("gateway_replica_up") == 1)
    await door.post(CHAT, several)  # perhaps of another build by now
    asked = ["stream_options" in request.json() for request in scripted_engine.requests]
    assert asked[1:] == [True, False]


async def test_metering_cannot_be_switched_off(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(sse(transcript(" a", usage=(3, 1), continuous=True)))
    door = await open_door(scripted_engine.url)
    options = {"include_usage": False, "continuous_usage_stats": False, "include_obfuscation": False}
    ask = {"model": "tiny", "stream": True, "stream_options": options, **PROMPTS["chat"]}
    reply = await door.post(CHAT, ask)
    assert reply.body == b"".join(transcript(" a"))
    told = scripted_engine.requests[0].json()
    assert told["stream_options"] == options | {"include_usage": True, "continuous_usage_stats": True}
    assert {key: value for key, value in told.items() if key != "stream_options"} == {
        key: value for key, value in ask.items() if key != "stream_options"
    }


REFUSALS: dict[str, tuple[int, Any]] = {
    "a word": (400, {"error": {"message": "Unrecognized request argument: stream_options", "type": "x", "code": 400}}),
    "a param": (400, {"error": {"message": "Unknown parameter.", "type": "x", "param": "stream_options"}}),
    "a member": (422, {"error": "stream_options.continuous_usage_stats: unknown field", "error_type": "validation"}),
    "FastAPI's": (422, {"detail": [{"type": "x", "loc": ["body", "stream_options"], "msg": "Not permitted"}]}),
    "Mistral's": (
        422,
        {
            "object": "error",
            "message": {"detail": [{"type": "x", "loc": ["body", "stream_options"], "msg": "Not permitted"}]},
            "type": "invalid_request_error",
        },
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_an_engine_that_refuses_to_be_asked_is_not_asked_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    status, refusal = REFUSALS[name]
    scripted_engine.answer(http(dumps(refusal), status=f"{status} X"))
    events = transcript(" a", " b")
    for _ in range(2):
        scripted_engine.answer(sse(events))
    door = await open_door(scripted_engine.url)
    ask = {"model": "tiny", "stream": True, **PROMPTS["chat"]}
    for _ in range(2):
        assert (await door.post(CHAT, ask)).body == b"".join(events)
    assert ["stream_options" in request.json() for request in scripted_engine.requests] == [True, False, False]
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 4
    assert samples.total("gateway_requests_total", outcome="ok") == 2


async def test_an_engine_that_refuses_running_totals_is_asked_what_the_client_asked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    refusal = dumps({"error": {"message": "stream_options: unknown: continuous_usage_stats", "type": "x", "code": 400}})
    scripted_engine.answer(http(refusal, status="400 Bad Request"))
    events = transcript(" a", usage=(3, 1))
    scripted_engine.answer(sse(events))
    door = await open_door(scripted_engine.url)
    options = {"include_usage": True}
    ask = {"model": "tiny", "stream": True, "stream_options": options, **PROMPTS["chat"]}
    assert (await door.post(CHAT, ask)).body == b"".join(events)
    asked = [request.json()["stream_options"] for request in scripted_engine.requests]
    assert asked == [options | {"continuous_usage_stats": True}, options]
    assert (await door.idle()).total("gateway_tokens_total", kind="completion", source="engine") == 1


async def test_what_the_client_itself_asked_and_the_engine_refuses_is_a_400_and_others_are_asked_for_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    refusal = dumps({"error": {"message": "Unrecognized request argument: stream_options", "type": "x", "code": 400}})
    for _ in range(2):
        scripted_engine.answer(http(refusal, status="400 Bad Request"))
    scripted_engine.answer(sse(transcript(" a", usage=(3, 1))))
    door = await open_door(scripted_engine.url)
    ask = {"model": "tiny", "stream": True, **PROMPTS["chat"]}
    assert (await door.post(CHAT, ask | {"stream_options": {"include_usage": True}})).status == 400
    assert (await door.post(CHAT, ask)).status == 200
    asked = [request.json()["stream_options"].get("continuous_usage_stats") for request in scripted_engine.requests]
    assert asked == [True, None, True]


@pytest.mark.parametrize("engine", ["vllm", "openai"])
async def test_fields_that_look_like_ours_are_the_engines_business_and_change_no_books(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, engine: str
) -> None:
    scripted_engine.answer(drip(sse(transcript(" a", " b", usage=(3, 2), continuous=engine == "vllm"))))
    door = await open_door(scripted_engine.url, pools={"main": {"engine": engine}})
    options = b'{"include_usage":false, "x_new":{"include_usage":true},"include_usage_":1,"asked":null}'
    body = (
        b'{"x_gateway":{"asked":true,"keep_total":true},"include_usage":true,"continuous_usage_stats":true,'
        b'"usage":{"prompt_tokens":0},"unasked":false,"system_fingerprint":"f","model":"tiny","stream":true,'
        b'"stream_options": %b,'
        b'"messages":[{"role":"user","content":"\\",\\"stream_options\\":{}","stream_options":{}}]}'
    )
    reply = await door.post(CHAT, body % options)
    expected = transcript(" a", " b") if engine == "vllm" else without_total(transcript(" a", " b", usage=(3, 2)))
    assert reply.body == b"".join(expected)
    received = scripted_engine.requests[0]
    told = received.json()["stream_options"]
    running = {"continuous_usage_stats": True} if engine == "vllm" else {}
    assert told == json.loads(options) | {"include_usage": True} | running
    before, after = (body % b"|").split(b"|")
    assert received.body.startswith(before)
    assert received.body.endswith(after)
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="prompt", source="engine") == 3
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2


def without_total(events: list[bytes]) -> list[bytes]:
    """Return a stream without the event that tells its usage, which is the last but one."""
    return [*events[:-2], events[-1]]


async def test_a_call_that_an_engine_refuses_either_way_does_not_stop_the_asking(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    quoting = b'{"error":{"message":"user: not a string: stream_options","type":"x","param":null,"code":400}}'
    for _ in range(2):
        scripted_engine.answer(http(quoting, status="400 Bad Request"))
    scripted_engine.answer(sse(transcript(" a")))
    door = await open_door(scripted_engine.url)
    ask = {"model": "tiny", "stream": True, **PROMPTS["chat"]}
    assert (await door.post(CHAT, ask)).status == 400
    assert (await door.post(CHAT, ask)).status == 200
    assert ["stream_options" in request.json() for request in scripted_engine.requests] == [True, False, True]


async def test_a_clients_own_bad_stream_options_are_its_own_fault(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, {"model": "tiny", "stream_options": {"include_usage": True}, **PROMPTS["chat"]})
    assert (reply.status, reply.error["param"]) == (400, "stream_options")
    assert scripted_engine.requests == []


def same(stream: bytes) -> bytes:
    """Blank what differs between any two calls: the id and the time."""
    return re.sub(rb'"id":"[^"]*"|"created":\d+', b"", stream)
