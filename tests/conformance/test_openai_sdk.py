"""The real `openai` package against a gateway: answers are its types, refusals of wrong calls its exceptions."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from gateway.engine.server import SimulatedEngine
from tests.deadlines import PROMPTLY_S
from tests.doors import MODEL, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.transcripts import DONE, chat, chat_role, sse

pytestmark = pytest.mark.compiled

HI: Any = [{"role": "user", "content": "Say something short."}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
OpenClient = Callable[..., Awaitable[openai.AsyncOpenAI]]


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    simulated = SimulatedEngine("tiny")
    await simulated.start()
    yield simulated
    await simulated.close()


def port_of(engine: SimulatedEngine) -> int:
    assert engine._runner is not None
    return int(engine._runner.addresses[0][1])


@pytest.fixture
async def door(open_door: OpenDoor, engine: SimulatedEngine) -> Door:
    return await open_door(f"http://127.0.0.1:{port_of(engine)}")


@pytest.fixture
async def open_client() -> AsyncIterator[OpenClient]:
    """Give a function that makes a client of a gateway; it retries nothing unless told to."""
    clients: list[openai.AsyncOpenAI] = []

    async def make(door: Door, **options: Any) -> openai.AsyncOpenAI:
        settings = {"api_key": door.token(), "max_retries": 0, "timeout": 10, **options}
        clients.append(openai.AsyncOpenAI(base_url=f"{door.url}/v1", **settings))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def client(open_client: OpenClient, door: Door) -> openai.AsyncOpenAI:
    return await open_client(door)


async def test_a_chat(client: openai.AsyncOpenAI, engine: SimulatedEngine) -> None:
    reply = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=7, n=2)
    assert [choice.finish_reason for choice in reply.choices] == ["length", "length"]
    assert all(choice.message.content for choice in reply.choices)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == engine.counters.generated_tokens == 14
    assert reply.usage.prompt_tokens == engine.counters.prompt_tokens
    assert reply._request_id is not None
    assert reply._request_id in reply.id


async def test_a_streamed_chat_is_the_whole_one_in_pieces(client: openai.AsyncOpenAI) -> None:
    options: Any = {"model": "tiny", "messages": HI, "max_tokens": 20, "seed": 7}
    whole = await client.chat.completions.create(**options)
    chunks = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("include", [True, False])
async def test_a_stream_tells_its_usage_where_it_was_asked_to(
    client: openai.AsyncOpenAI, door: Door, engine: SimulatedEngine, include: bool
) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=9, stream=True, stream_options={"include_usage": include}
    )
    told = [chunk.usage for chunk in [chunk async for chunk in stream] if chunk.usage]
    assert [usage.completion_tokens for usage in told] == ([9] if include else [])
    samples = await door.idle()
    charged = samples.total("gateway_tokens_total", kind="completion", source="engine")
    assert charged == engine.counters.generated_tokens == 9


async def test_completions_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12}
    whole = await client.completions.create(**options)
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (12, "length")
    chunks = [chunk async for chunk in await client.completions.create(**options, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


async def test_the_helper_that_collects_a_stream(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="tiny", messages=HI) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"


async def test_many_streams_at_once(client: openai.AsyncOpenAI, door: Door, engine: SimulatedEngine) -> None:
    async def one(tokens: int) -> int:
        stream = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=tokens, stream=True)
        return sum([bool(chunk.choices[0].delta.content) async for chunk in stream])

    wanted = [1 + number % 30 for number in range(40)]
    assert await asyncio.gather(*map(one, wanted)) == wanted
    samples = await door.idle()
    charged = samples.total("gateway_tokens_total", kind="completion", source="engine")
    assert charged == engine.counters.generated_tokens == sum(wanted)


async def test_a_stream_that_is_left_stops_the_engine(open_door: OpenDoor, open_client: OpenClient) -> None:
    slow = SimulatedEngine("tiny", tokens_per_second=0.8)  # never two while the machine stands still
    door = await open_door(f"http://127.0.0.1:{await slow.start()}")
    client = await open_client(door)
    stream = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=5000, stream=True)
    while not (await anext(stream)).choices[0].delta.content:
        pass
    await stream.close()
    samples = await door.until(lambda samples: samples.total("gateway_requests_total", outcome="client_gone") == 1)
    async with asyncio.timeout(PROMPTLY_S):
        while slow.counters.running:
            await asyncio.sleep(0.01)
    charged = samples.total("gateway_tokens_total", kind="completion")
    assert slow.counters.generated_tokens - 1 <= charged <= slow.counters.generated_tokens < 100
    await slow.close()


async def test_the_synchronous_client(door: Door) -> None:
    def use() -> tuple[str, int, str]:
        with openai.OpenAI(base_url=f"{door.url}/v1", api_key=door.token(), max_retries=0) as client:
            reply = client.chat.completions.create(model="tiny", messages=HI, max_tokens=4)
            chunks = client.completions.create(model="tiny", prompt="Hi", max_tokens=4, stream=True)
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("nope")
            assert isinstance(reply, ChatCompletion)
            return reply.choices[0].message.content or "", len(list(chunks)), client.models.list().data[0].id

    text, chunks, model = await asyncio.to_thread(use)
    assert text
    assert (chunks, model) == (4, MODEL)


async def test_models_are_listed_and_found_by_ids_with_a_slash(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    for name in (MODEL, "tiny"):
        model = await client.models.retrieve(name)
        assert (model.id, model.object) == (MODEL, "model")


async def test_what_tool_users_send_reaches_the_engine_as_it_is(
    open_door: OpenDoor, open_client: OpenClient, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    client = await open_client(door)
    called = {
        "id": "call-1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Z\u00fcrich"}'},
    }
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "a-b", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call-1", "content": "rain"},
    ]
    await client.chat.completions.create(
        model="tiny",
        messages=messages,
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=False,
        metadata={"a": "b"},
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}},
    )
    sent = scripted_engine.requests[0].json()
    assert sent["messages"] == messages
    assert (sent["tools"], sent["tool_choice"], sent["parallel_tool_calls"]) == ([TOOL], "auto", False)
    assert (sent["metadata"], sent["top_k"], sent["chat_template_kwargs"]) == (
        {"a": "b"},
        5,
        {"enable_thinking": False},
    )


async def test_tool_calls_come_back(
    open_door: OpenDoor, open_client: OpenClient, scripted_engine: ScriptedEngine
) -> None:
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    event = chat("", finish_reason="tool_calls").replace(b'{"content":""}', b'{"tool_calls":[%b]}' % _json(call))
    scripted_engine.answer(sse([chat_role(), event, DONE]))
    client = await open_client(await open_door(scripted_engine.url))
    stream = await client.chat.completions.create(model="tiny", messages=HI, tools=[TOOL], stream=True)
    calls = [call for chunk in [c async for c in stream] for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function] == ["weather"]


async def refused(client: openai.AsyncOpenAI, expected: type[openai.APIStatusError], **changes: Any) -> Any:
    """Check that a call, streamed or not, raises `expected`; return the exception."""
    ask: Any = {"model": "tiny", "messages": HI, "max_tokens": 5, **changes}
    for stream in (True, False):
        with pytest.raises(expected) as caught:
            await client.chat.completions.create(**ask, stream=stream)
        error = caught.value
        assert type(error) is expected
        assert error.request_id == error.response.headers["inference-id"]
        assert error.message.startswith(f"Error code: {error.status_code} - ")
    return error


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"extra_body": {"priority": 1}}, "unsupported_value", "priority"),
        ({"tools": [TOOL], "tool_choice": "required"}, "unsupported_value", "tool_choice"),
        ({"messages": [{"role": "user", "content": "x" * 140_000}]}, "context_length_exceeded", "input_tokens"),
    ],
)
async def test_a_wrong_call_is_a_bad_request(
    client: openai.AsyncOpenAI, changes: dict[str, Any], code: str, param: str
) -> None:
    error = await refused(client, openai.BadRequestError, **changes)
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")


async def test_a_model_that_is_not_there_is_not_found(client: openai.AsyncOpenAI) -> None:
    error = await refused(client, openai.NotFoundError, model="nope")
    assert (error.code, error.param, error.type) == ("model_not_found", "model", "invalid_request_error")
    assert "'nope' does not exist" in error.body["message"]
    for operation in (client.models.retrieve("no/such"), client.embeddings.create(model="tiny", input="x")):
        with pytest.raises(openai.NotFoundError):
            await operation


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
