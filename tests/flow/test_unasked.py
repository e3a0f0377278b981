"""Usage asked on the client's behalf: the books are the engine's own, the client's bytes are as without the gateway."""

import re
from typing import Any

import pytest

from gateway.engine.server import SimulatedEngine
from tests.doors import CHAT, COMPLETIONS, OpenDoor
from tests.engines import ScriptedEngine, script
from tests.transcripts import DONE, FINGERPRINT, Kind, answer, chat, chat_role, http, sse, transcript

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


async def test_an_engine_that_refuses_to_be_asked_is_not_asked_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    refusal = (
        b'{"error":{"message":"Unrecognized request argument: stream_options","type":"x","param":null,"code":400}}'
    )
    scripted_engine.answer(http(refusal, status="400 Bad Request"))
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
