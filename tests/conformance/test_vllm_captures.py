"""What a real vLLM sent is sent again through the gateway: clients get what it sends when nothing is asked for them.

`asked/NAME` is what the gateway's asking brought, `unasked/NAME` the same call without the gateway.
"""

import re
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, OpenDoor
from tests.engines import ScriptedEngine
from tests.transcripts import capture, serve_capture

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "the quick brown fox"}]}
STREAM = ASK | {"stream": True}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hello world", "stream": True}
TOTAL = {"stream_options": {"include_usage": True}}
BOTH = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

Pair = tuple[str, dict[str, Any], int, int]
# How each was asked for, and the prompt and completion tokens that the engine counted.
PAIRS: dict[str, Pair] = {
    "chat": (CHAT, STREAM, 21, 6),
    "completions": (COMPLETIONS, COMPLETION, 3, 6),
    "logprobs": (CHAT, STREAM | {"logprobs": True, "top_logprobs": 2}, 21, 3),
    "completions_logprobs": (COMPLETIONS, COMPLETION | {"logprobs": 2}, 3, 3),
    "choices": (CHAT, STREAM | {"n": 2}, 21, 6),
    "prompts": (COMPLETIONS, COMPLETION | {"prompt": ["hello", "hello world, this is"]}, 8, 6),
    "echo": (COMPLETIONS, COMPLETION | {"echo": True}, 3, 3),
    "stop_string": (CHAT, STREAM | {"stop": ["azy"]}, 21, 11),
    "tool": (CHAT, STREAM, 21, 40),
    "tool_required": (CHAT, STREAM, 21, 54),
    "total": (CHAT, STREAM | TOTAL, 21, 4),
}


@pytest.mark.parametrize("name", PAIRS)
async def test_the_client_gets_what_the_engine_sends_unasked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    path, ask, prompt, completion = PAIRS[name]
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(serve_capture("vllm/asked/chat"))  # with which the replica's fingerprint is known
    await door.post(CHAT, STREAM)
    before = await door.idle()
    scripted_engine.answer(serve_capture(f"vllm/asked/{name}"))
    reply = await door.post(path, ask)
    assert same(reply.body) == same(capture(f"vllm/unasked/{name}")[1])
    samples = await door.idle()
    for kind, count in (("prompt", prompt), ("completion", completion)):
        labels = {"kind": kind, "source": "engine"}
        assert samples.total("gateway_tokens_total", **labels) - before.total("gateway_tokens_total", **labels) == count
    assert samples.total("gateway_usage_missing_total") == 0


@pytest.mark.parametrize("name", PAIRS)
async def test_a_client_that_asked_for_all_gets_all(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    path, ask, _, completion = PAIRS[name]
    scripted_engine.answer(serve_capture(f"vllm/asked/{name}"))
    door = await open_door(scripted_engine.url)
    assert (await door.post(path, ask | BOTH)).body == capture(f"vllm/asked/{name}")[1]
    assert (await door.idle()).total("gateway_tokens_total", kind="completion", source="engine") == completion


def same(stream: bytes) -> bytes:
    """Blank what differs between any two calls: ids and the time."""
    return re.sub(rb'"id":"[^"]*"|"created":\d+', b"", stream)
