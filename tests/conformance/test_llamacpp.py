"""A gateway before a real llama.cpp server: its answers go through untouched, and the books hold what it generated."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor, Samples
from tests.envelope import BAD_REQUEST, error_of
from tests.llamacpp import LlamaCpp

pytestmark = pytest.mark.llamacpp

FIXED: dict[str, Any] = {"temperature": 0, "seed": 1, "cache_prompt": False}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 12} | FIXED,
    COMPLETIONS: {"prompt": "Once upon a time", "max_tokens": 12} | FIXED,
}
ASKED: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
}
# What differs from one answer to the next: its id, when it was made, and how long that took.
VARYING = re.compile(rb'"(?:id":"[^"]*"|created":\d+|[a-z_]*(?:_ms|_per_second)":[\d.e+-]+)')


async def door_to(open_door: OpenDoor, engine: LlamaCpp) -> Door:
    model = {"pool": "main", "aliases": ["small"], "served_name": engine.model}
    return await open_door(engine.url, models={"acme/tiny": model}, pools={"main": {"engine": "llamacpp"}})


async def directly(door: Door, engine: LlamaCpp, path: str, body: dict[str, Any]) -> bytes:
    async with door.session.post(engine.url + path, json=body | {"model": engine.model}) as response:
        assert response.status == 200
        return await response.read()


async def predicted(door: Door, engine: LlamaCpp) -> float:
    """Return how many tokens the engine has generated since its start, as it says itself."""
    async with door.session.get(engine.url + "/metrics") as response:
        return Samples(await response.text()).total("llamacpp:tokens_predicted_total")


def same(body: bytes) -> bytes:
    return VARYING.sub(b"", body)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("asked", ASKED)
async def test_an_answer_is_what_the_engine_gives_without_us(
    open_door: OpenDoor, llamacpp: LlamaCpp, path: str, asked: str
) -> None:
    door = await door_to(open_door, llamacpp)
    body = BODIES[path] | ASKED[asked]
    expected = await directly(door, llamacpp, path, body)
    before = await predicted(door, llamacpp)
    reply = await door.post(path, body | {"model": "small"})
    assert reply.status == 200
    assert same(reply.body) == same(expected)
    samples = await door.idle()
    generated = await predicted(door, llamacpp) - before
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == generated == 12
    assert samples.total("gateway_tokens_total", source="estimated") == 0
    assert samples.total("gateway_requests_total", outcome="ok") == 1


@pytest.mark.parametrize("path", BODIES)
async def test_the_usage_in_the_books_is_the_usage_reported(open_door: OpenDoor, llamacpp: LlamaCpp, path: str) -> None:
    door = await door_to(open_door, llamacpp)
    reply = await door.post(path, BODIES[path] | {"model": "small", "max_tokens": 5})
    usage = reply.json()["usage"]
    samples = await door.idle()
    for kind in ("prompt", "completion"):
        assert samples.total("gateway_tokens_total", kind=kind, source="engine") == usage[f"{kind}_tokens"] > 0


@pytest.mark.parametrize(
    ("asked", "source"), [("whole", "estimated"), ("stream", "engine"), ("stream with usage", "engine")]
)
async def test_the_usage_of_several_choices_is_their_sum(
    open_door: OpenDoor, llamacpp: LlamaCpp, asked: str, source: str
) -> None:
    """Of a whole answer the server tells only the first choice's; both choices say the same at temperature 0."""
    door = await door_to(open_door, llamacpp)
    before = await predicted(door, llamacpp)
    reply = await door.post(CHAT, BODIES[CHAT] | ASKED[asked] | {"model": "small", "n": 2, "max_tokens": 6})
    assert reply.status == 200
    samples = await door.idle()
    charged = samples.total("gateway_tokens_total", kind="completion", source=source)
    assert charged == await predicted(door, llamacpp) - before == 12
    assert samples.total("gateway_tokens_total", kind="prompt") == (await usage_of_one(door))["prompt_tokens"]


async def usage_of_one(door: Door) -> Any:
    return (await door.post(CHAT, BODIES[CHAT] | {"model": "small", "max_tokens": 1})).json()["usage"]


async def test_streams_at_once_are_each_whole(open_door: OpenDoor, llamacpp: LlamaCpp) -> None:
    door = await door_to(open_door, llamacpp)
    before = await predicted(door, llamacpp)
    body = BODIES[CHAT] | {"model": "small", "stream": True}
    replies = await asyncio.gather(*[door.post(CHAT, body | {"max_tokens": number}) for number in range(1, 7)])
    assert all(reply.body.endswith(b"data: [DONE]\n\n") for reply in replies)
    charged = (await door.idle()).total("gateway_tokens_total", kind="completion", source="engine")
    assert charged == await predicted(door, llamacpp) - before == 21


async def test_a_client_that_leaves_frees_the_slot(open_door: OpenDoor, llamacpp: LlamaCpp) -> None:
    door = await door_to(open_door, llamacpp)
    before = await predicted(door, llamacpp)
    body = BODIES[CHAT] | {"model": "small", "stream": True, "max_tokens": 900, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {door.token()}"}
    async with door.session.post(door.url + CHAT, json=body, headers=headers) as response:
        for _ in range(3):
            assert (await response.content.readuntil(b"\n\n")).startswith(b"data: ")
        assert await busy_slots(door, llamacpp) == 1
        response.close()
    samples = await door.until(lambda samples: samples.total("gateway_requests_total", outcome="client_gone") == 1)
    async with asyncio.timeout(DEADLINE_S):
        while await busy_slots(door, llamacpp):
            await asyncio.sleep(0.02)
    charged = samples.total("gateway_tokens_total", kind="completion")
    assert 2 <= charged <= await predicted(door, llamacpp) - before < 900


async def busy_slots(door: Door, engine: LlamaCpp) -> int:
    async with door.session.get(engine.url + "/slots") as response:
        return sum(slot["is_processing"] for slot in await response.json())


async def test_its_refusals_are_passed_on_as_ours(open_door: OpenDoor, llamacpp: LlamaCpp) -> None:
    door = await door_to(open_door, llamacpp)
    long = {"model": "small", "messages": [{"role": "user", "content": "word " * 1500}]}
    for stream in (False, True):
        message = error_of(
            await door.post(CHAT, long | {"stream": stream}), 400, "context_length_exceeded", BAD_REQUEST
        )
        assert "exceeds the available context size" in message
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    error_of(
        await door.post(CHAT, BODIES[CHAT] | {"model": "small", "response_format": schema}),
        400,
        "invalid_value",
        BAD_REQUEST,
    )


async def test_structured_output_is_what_was_asked_for(open_door: OpenDoor, llamacpp: LlamaCpp) -> None:
    door = await door_to(open_door, llamacpp)
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = await door.post(CHAT, BODIES[CHAT] | {"model": "small", "response_format": form, "max_tokens": 40})
    assert isinstance(json.loads(reply.json()["choices"][0]["message"]["content"])["age"], int)
