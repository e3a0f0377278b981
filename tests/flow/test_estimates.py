"""The input that calls reserve: learned from what engines told, of each model apart, and media by their kind."""

import json
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, MODEL, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, close, never
from tests.leaving import client_of
from tests.transcripts import answer, chat, chat_role, chunked, head, http, sse, transcript

LIMITS = {
    "plans": {"standard": [{"name": "input", "per": ["key"], "tokens": 10**6, "count": "input", "window": "day"}]}
}
# 8 KiB in all, to a byte: what is learned of it is learned at full steps.
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 8100}], "max_tokens": 5}
STREAM = ASK | {"stream": True}
SIZE = 8192


def of_size(ask: dict[str, Any]) -> dict[str, Any]:
    missing = SIZE - len(json.dumps(ask))
    return ask | {"messages": [{"role": "user", "content": "x" * (8100 + missing)}]}


def reserved(reply: Reply) -> int:
    return 10**6 - int(reply.headers["x-ratelimit-remaining-tokens"])


async def teach(door: Door, engine: ScriptedEngine, prompt: int, *, calls: int, stream: bool = False) -> None:
    for _ in range(calls):
        usage = (prompt, 1)
        engine.answer(sse(transcript("a", usage=usage)) if stream else http(answer("chat", "Hi", usage=usage)))
        assert (await door.post(CHAT, of_size(STREAM if stream else ASK))).status == 200


async def figure(door: Door, model: str = MODEL) -> float:
    return (await door.metrics()).total("gateway_bytes_per_token", model=model)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_engines_tell_of_prompts_is_what_the_next_call_reserves_by(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    door = await open_door(scripted_engine.url, limits=LIMITS)
    assert await figure(door) == 4
    await teach(door, scripted_engine, 4096, calls=3, stream=stream)
    learned = 4 / (1 + 1 / 64) ** 3
    assert await figure(door) == pytest.approx(learned)
    scripted_engine.answer(http(answer("chat", "Hi", usage=(0, 0))))
    used = reserved(await door.post(CHAT, of_size(ASK))) - 3 * 4096
    assert used == int(SIZE / learned)


async def test_a_prompt_that_no_engine_told_is_charged_by_what_was_learned(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, limits=LIMITS)
    await teach(door, scripted_engine, 4096, calls=5)
    expected = int(SIZE / await figure(door))
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), never)
    async with client_of(door) as client:
        await client.ask(door, of_size(STREAM))
        await client.reads(b'" a"')
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), close)
    await door.post(CHAT, of_size(STREAM))
    scripted_engine.answer(http(answer("chat", " Hi")))
    await door.post(CHAT, of_size(ASK))
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="prompt", source="estimated") == 3 * expected
    assert samples.total("gateway_bytes_per_token", model=MODEL) == pytest.approx(SIZE / expected, rel=0.001)


async def test_each_model_learns_of_its_own_calls_by_any_of_its_names(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, models={"other": {"pool": "main"}})
    await teach(door, scripted_engine, 8000, calls=1)
    scripted_engine.answer(http(answer("completions", "Hi", usage=(8000, 1))))
    await door.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * 8100})
    scripted_engine.answer(http(answer("completions", "Hi", usage=(100, 1))))
    await door.post(COMPLETIONS, {"model": "other", "prompt": "x" * 8100})
    assert await figure(door) == pytest.approx(4 / (1 + 1 / 64) ** 2)
    assert await figure(door, "other") == pytest.approx(4 * (1 + 1 / 64))


async def test_media_reserve_what_the_model_says_of_their_kind_and_teach_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    entry = {
        "content_parts": ["text", "image_url", "input_audio", "file"],
        "media_tokens": {"image_url": 85, "input_audio": 3000},
    }
    door = await open_door(scripted_engine.url, limits=LIMITS, models={MODEL: entry})
    base64 = "A" * 40_000
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64}"}}
    sound = {"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}
    file = {"type": "file", "file": {"file_data": base64}}
    before = 0
    for parts, media in (([picture], 85), ([picture, picture, sound], 3170), ([file], 1024)):
        scripted_engine.answer(http(answer("chat", "Hi", usage=(500, 1))))
        reply = await door.post(CHAT, ASK | {"messages": [{"role": "user", "content": parts}]})
        assert 0 < reserved(reply) - before - media < 100
        await door.idle()
        before += 500
    assert await figure(door) == 4
