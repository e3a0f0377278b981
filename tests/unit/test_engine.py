"""The simulated engine over HTTP: the bytes of a real vLLM, counts that hold when clients leave, the OpenAI client."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.clock import SystemClock
from gateway.engine.server import SimulatedEngine, serve_engine
from tests.deadlines import DEADLINE_S
from tests.transcripts import DONE, capture

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me of the river."}]}
COMPLETION = {"model": "tiny", "prompt": "The river"}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@dataclass(frozen=True, slots=True)
class Answered:
    status: str
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes]


@dataclass(frozen=True, slots=True)
class Running:
    engine: SimulatedEngine
    port: int

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        reader, writer = await self.send(method, path, body, connection="close", **headers)
        raw = await reader.read()
        writer.close()
        head, _, rest = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        chunks = dechunked(rest) if "transfer-encoding" in named else [rest]
        return Answered(status.partition(" ")[2], named, b"".join(chunks), chunks)

    async def send(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {"host": "engine", "content-type": "application/json", "content-length": str(len(content))} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content)
        return reader, writer

    async def metric(self, name: str) -> float:
        text = (await self.ask("GET", "/metrics")).body.decode()
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return sum(each.value for each in samples if each.name == name and each.labels["model_name"] == "tiny")


def dechunked(data: bytes) -> list[bytes]:
    chunks = []
    while data:
        size, _, data = data.partition(b"\r\n")
        chunks.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]
    return chunks[:-1]


def events(body: bytes) -> list[Any]:
    assert body.endswith(DONE)
    return [json.loads(event.removeprefix(b"data: ")) for event in body.removesuffix(DONE).split(b"\n\n") if event]


def shape(body: bytes) -> bytes:
    """Blank what differs from call to call, and leave every other byte."""
    strings = rb'"(id|root|content|text|system_fingerprint)":"(?:[^"\\]|\\.)*"'
    numbers = rb'"(created|prompt_tokens|completion_tokens|total_tokens)":\d+'
    return re.sub(numbers, rb'"\1":0', re.sub(strings, rb'"\1":""', body))


@pytest.fixture
async def engine() -> AsyncIterator[Running]:
    simulated = SimulatedEngine("tiny", max_model_len=1024)
    yield Running(simulated, await simulated.start())
    await simulated.close()


@pytest.fixture
async def slow() -> AsyncIterator[Running]:
    simulated = SimulatedEngine("tiny", tokens_per_second=100)
    yield Running(simulated, await simulated.start())
    await simulated.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


REFUSED: list[tuple[str, str, object]] = [
    ("bad_json", "/v1/chat/completions", b"{bad"),
    ("missing_messages", "/v1/chat/completions", {"model": "tiny"}),
    ("empty_messages", "/v1/chat/completions", {"model": "tiny", "messages": []}),
    ("neg_max_tokens", "/v1/chat/completions", CHAT | {"max_tokens": -1}),
    ("maxtok_too_big", "/v1/completions", COMPLETION | {"max_tokens": 5000}),
    ("too_long", "/v1/completions", COMPLETION | {"prompt": "word" * 1025}),
    ("unknown_model", "/v1/chat/completions", CHAT | {"model": "nope"}),
    ("notfound", "/v1/embeddings", {}),
]


@pytest.mark.parametrize(("name", "path", "body"), REFUSED, ids=[name for name, _, _ in REFUSED])
async def test_refuses_in_the_very_bytes_of_vllm(engine: Running, name: str, path: str, body: object) -> None:
    answered = await engine.ask("POST", path, body)
    assert answered.body == capture(f"vllm/{name}")[1]
    assert_head_like(answered, name)


@pytest.mark.parametrize(("name", "path"), [("health", "/health"), ("version", "/version"), ("models", "/v1/models")])
async def test_pages_have_the_bytes_of_vllm(engine: Running, name: str, path: str) -> None:
    answered = await engine.ask("GET", path)
    assert shape(answered.body) == shape(capture(f"vllm/{name}")[1])
    if name != "models":  # a longer root and permission id there
        assert_head_like(answered, name)


STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("chat_stream_usage", "/v1/chat/completions", CHAT | USAGE | {"max_tokens": 4}),
    ("chat_stream_continuous", "/v1/chat/completions", CHAT | CONTINUOUS | {"max_tokens": 3}),
    ("completions_stream", "/v1/completions", COMPLETION | USAGE | {"max_tokens": 3}),
]


@pytest.mark.parametrize(("name", "path", "body"), STREAMS, ids=[name for name, _, _ in STREAMS])
async def test_streams_have_the_bytes_of_vllm(engine: Running, name: str, path: str, body: object) -> None:
    answered = await engine.ask("POST", path, body)
    assert shape(answered.body) == shape(capture(f"vllm/{name}")[1])
    assert_head_like(answered, name)
    assert [chunk for chunk in answered.chunks if chunk.count(b"\n\n") != 1 or not chunk.endswith(b"\n\n")] == []


async def test_a_stream_of_two_choices_has_the_events_of_vllm(engine: Running) -> None:
    answered = await engine.ask("POST", "/v1/chat/completions", CHAT | {"stream": True, "n": 2, "max_tokens": 2})
    captured = re.sub(rb'"logprobs":\{.*?\}\]\}\]\}', rb'"logprobs":null', capture("vllm/logprobs_n2")[1])
    # A real engine interleaves choices as its batches fall: the same events, in an order of their own.
    assert sorted(shape(answered.body).split(b"\n\n")) == sorted(shape(captured).split(b"\n\n"))


async def test_an_answer_that_is_no_stream_has_the_bytes_of_vllm(engine: Running) -> None:
    answered = await engine.ask("POST", "/v1/chat/completions", CHAT | {"max_tokens": 4})
    assert shape(answered.body) == shape(capture("vllm/chat_nonstream")[1])
    # Values whose length is set by chance aside, the heads agree too.
    assert answered.headers["content-type"] == "application/json"


def assert_head_like(answered: Answered, name: str) -> None:
    status, *lines = capture(f"vllm/{name}")[0].decode().strip().split("\r\n")
    expected = dict(line.split(": ", 1) for line in lines)
    assert answered.status == status.partition(" ")[2]
    # `connection: close` answers ours.
    assert (answered.headers | {"date": ""}) == (expected | {"date": "", "connection": "close"})


async def test_usage_is_left_out_of_streams_unless_asked_for(engine: Running) -> None:
    for options in (
        {},
        {"stream_options": None},
        {"stream_options": {"include_usage": False, "continuous_usage_stats": True}},
    ):
        answered = await engine.ask("POST", "/v1/chat/completions", CHAT | {"stream": True} | options)
        assert b'"usage"' not in answered.body
        assert answered.body.count(b'"system_fingerprint"') == 1


async def test_generates_16_tokens_for_completions_and_a_finished_chat_by_default(engine: Running) -> None:
    completion = json.loads((await engine.ask("POST", "/v1/completions", COMPLETION)).body)
    chat = json.loads((await engine.ask("POST", "/v1/chat/completions", CHAT)).body)
    assert (completion["usage"]["completion_tokens"], completion["choices"][0]["finish_reason"]) == (16, "length")
    assert (chat["usage"]["completion_tokens"], chat["choices"][0]["finish_reason"]) == (64, "stop")


async def test_the_same_call_gives_the_same_text_and_another_seed_another(engine: Running) -> None:
    async def text(body: dict[str, Any], *, stream: bool) -> str:
        answered = await engine.ask("POST", "/v1/chat/completions", body | {"stream": stream})
        if not stream:
            return str(json.loads(answered.body)["choices"][0]["message"]["content"])
        return "".join(chunk["choices"][0]["delta"]["content"] for chunk in events(answered.body))

    first = await text(CHAT, stream=False)
    assert await text(CHAT, stream=True) == first
    assert await text(CHAT | {"seed": 7}, stream=False) != first


async def test_the_callers_request_id_stands_in_the_answers_id(engine: Running) -> None:
    chat = await engine.ask("POST", "/v1/chat/completions", CHAT, x_request_id="abc-1")
    completion = await engine.ask("POST", "/v1/completions", COMPLETION | USAGE, x_request_id="abc-2")
    assert json.loads(chat.body)["id"] == "chatcmpl-abc-1"
    assert {chunk["id"] for chunk in events(completion.body)} == {"cmpl-abc-2"}


async def test_takes_bodies_of_many_megabytes(engine: Running) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000_000}}
    answered = await engine.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [picture]}]})
    assert answered.status == "200 OK"


async def test_metrics_count_what_was_generated(engine: Running) -> None:
    asked = COMPLETION | {"prompt": ["one", "two"], "n": 2, "max_tokens": 5}
    usage = json.loads((await engine.ask("POST", "/v1/completions", asked)).body)["usage"]
    assert usage["completion_tokens"] == 20
    assert await engine.metric("vllm:generation_tokens_total") == 20
    assert await engine.metric("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert await engine.metric("vllm:request_success_total") == 4
    assert await engine.metric("vllm:num_requests_running") == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_leaves_a_stream_ends_its_generation(slow: Running, path: str) -> None:
    asked = (CHAT if "chat" in path else COMPLETION) | CONTINUOUS | {"max_tokens": 10_000}
    reader, writer = await slow.send("POST", path, asked)
    seen = 0
    async with asyncio.timeout(DEADLINE_S):
        while seen < 10:
            line = await reader.readline()
            if b'"usage"' in line:
                seen = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
    assert await slow.metric("vllm:num_requests_running") == 1
    writer.transport.abort()
    await until(lambda: slow.engine.counters.running == 0)
    # What may have been under way when the connection broke is far less than what was still to come.
    assert 10 <= slow.engine.counters.generated_tokens < 100
    assert slow.engine.counters.finished.total() == 0


async def test_a_client_that_leaves_before_the_answer_ends_its_generation(slow: Running) -> None:
    _, writer = await slow.send("POST", "/v1/chat/completions", CHAT | {"max_tokens": 10_000})
    await until(lambda: slow.engine.counters.generated_tokens > 0)
    writer.close()
    await until(lambda: slow.engine.counters.running == 0)
    assert slow.engine.counters.generated_tokens < 100


async def test_keeps_the_pace_it_was_given(slow: Running) -> None:
    clock = SystemClock()
    start = clock.monotonic()
    await slow.ask("POST", "/v1/completions", COMPLETION | {"max_tokens": 10, "n": 4})
    assert clock.monotonic() - start >= 0.09  # timers count in milliseconds


async def test_closing_cuts_what_runs(slow: Running) -> None:
    reader, writer = await slow.send("POST", "/v1/chat/completions", CHAT | USAGE | {"max_tokens": 10_000})
    await reader.readuntil(b'{"content":')
    await slow.engine.close()
    rest = await reader.read()
    writer.close()
    assert not rest.endswith(b"0\r\n\r\n")
    assert slow.engine.counters.running == 0


async def test_only_the_api_needs_the_api_key() -> None:
    simulated = SimulatedEngine("tiny", api_key="secret")
    engine = Running(simulated, await simulated.start())
    refused = await engine.ask("POST", "/v1/chat/completions", CHAT, authorization="Bearer wrong")
    assert (refused.status, refused.body) == ("401 Unauthorized", b'{"error":"Unauthorized"}')
    assert (await engine.ask("POST", "/v1/chat/completions", CHAT, authorization="Bearer secret")).status == "200 OK"
    assert (await engine.ask("GET", "/health")).status == "200 OK"
    await simulated.close()


@pytest.fixture
async def client(engine: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"http://127.0.0.1:{engine.port}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        yield client


async def test_the_openai_client_reads_its_streams(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=5,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.completion_tokens, usage.total_tokens - usage.prompt_tokens) == (10, 10)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["length", "length"]


async def test_the_openai_client_reads_its_answers_and_errors(client: openai.AsyncOpenAI) -> None:
    completion = await client.completions.create(model="tiny", prompt="A", max_tokens=3, echo=True)
    assert completion.choices[0].text.startswith("A ")
    assert [model.id async for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError) as refused:
        await client.completions.create(model="big", prompt="A")
    assert (refused.value.param, refused.value.type) == ("model", "NotFoundError")


async def test_serves_until_cancelled() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_engine(model="tiny", host="127.0.0.1", port=0, tokens_per_second=None, started=listening.set_result)
    )
    port = int((await listening).rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
