"""The scripted engine keeps its word: exact bytes and segments, every kind of break, and what it saw of its peer."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests.engines import Connection, Received, ScriptedEngine, close, drip, flood, never, next_byte, reset, script
from tests.transcripts import capture, chat, chunked, head, http, serve_capture, sse, transcript, usage_event

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n{}"


async def connect(engine: ScriptedEngine, data: bytes = POST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(data)
    return reader, writer


async def test_answers_in_the_order_of_the_scripts_then_by_default(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(http(b"1"))
    scripted_engine.answer(http(b"2"))
    scripted_engine.default = script(http(b"3"))
    reader, writer = await connect(scripted_engine, POST * 4)
    expected = http(b"1") + http(b"2") + http(b"3") + http(b"3")
    assert await reader.readexactly(len(expected)) == expected
    assert {request.connection.id for request in scripted_engine.requests} == {0}
    writer.close()


async def test_records_a_request_as_it_came(scripted_engine: ScriptedEngine) -> None:
    head_bytes = b"POST /v1/x?y HTTP/1.1\r\nHost: e\r\nX-Twice: 1\r\nx-twice: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, writer = await connect(scripted_engine, head_bytes + b"3\r\n{ }\r\n1\r\n \r\n0\r\n\r\n")
    request = await scripted_engine.asked()
    assert (request.method, request.target, request.head, request.body) == ("POST", "/v1/x?y", head_bytes, b"{ } ")
    assert request.headers[1:3] == (("x-twice", "1"), ("x-twice", "2"))
    assert request.header("HOST") == "e"
    writer.close()


async def test_probes_use_up_no_script(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(http(b"1"))
    reader, writer = await connect(scripted_engine, b"GET /health HTTP/1.1\r\n\r\n" + POST)
    assert (await reader.readexactly(len(http(b"") + http(b"1")))).endswith(http(b"1"))
    assert [probe.target for probe in scripted_engine.probes] == ["/health"]
    writer.close()


async def test_drips_a_segment_at_a_time(scripted_engine: ScriptedEngine) -> None:
    class Peer(asyncio.Protocol):
        segments: list[bytes]

        def __init__(self) -> None:
            self.segments = []

        def data_received(self, data: bytes) -> None:
            self.segments.append(data)

    answer = sse(transcript(" 東京"))
    scripted_engine.answer(drip(answer), close)
    loop = asyncio.get_running_loop()
    transport, peer = await loop.create_connection(Peer, "127.0.0.1", scripted_engine.port)
    transport.write(POST)
    await (await scripted_engine.asked()).connection.gone()
    assert peer.segments == [answer[at : at + 1] for at in range(len(answer))]
    transport.close()


async def test_pauses_until_told_to_go_on(scripted_engine: ScriptedEngine) -> None:
    gate = asyncio.Event()
    first, second = chunked(chat(" one")), chunked(chat(" two"))
    scripted_engine.answer(head(), first, gate, second, close)
    reader, writer = await connect(scripted_engine)
    assert await reader.readexactly(len(head() + first)) == head() + first
    gate.set()
    assert await reader.read() == second
    writer.close()


async def test_a_reset_is_a_reset_and_what_came_before_arrives(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(), reset)
    reader, writer = await connect(scripted_engine)
    assert await reader.readexactly(len(head())) == head()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


@pytest.mark.parametrize(
    "leave", [asyncio.StreamWriter.close, lambda writer: writer.transport.abort()], ids=["FIN", "RST"]
)
async def test_sees_when_the_peer_leaves(
    scripted_engine: ScriptedEngine, leave: Callable[[asyncio.StreamWriter], None]
) -> None:
    scripted_engine.answer(never)
    _, writer = await connect(scripted_engine)
    connection = (await scripted_engine.asked()).connection
    assert not connection.closed.is_set()
    before = asyncio.get_running_loop().time()
    leave(writer)
    assert before <= await connection.gone()


async def test_a_flood_stops_where_the_peer_stops_reading(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(), flood(chunked(b"x" * 65536)))
    reader, writer = await connect(scripted_engine)
    connection = (await scripted_engine.asked()).connection
    await connection.stalled()
    # A reader that takes nothing more has 128 KiB in its own buffer; the rest is in the kernel.
    assert 65536 < connection.accepted < 16 * 2**20
    assert await reader.readexactly(len(head())) == head()
    writer.transport.abort()
    await connection.gone()


async def test_closes_idle_connections_and_only_those(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(http(b"1"))
    idle, idle_writer = await connect(scripted_engine)
    await idle.readexactly(len(http(b"1")))
    scripted_engine.answer(never)
    busy, busy_writer = await connect(scripted_engine)
    await scripted_engine.asked(2)
    scripted_engine.close_idle()
    assert await idle.read() == b""
    assert not scripted_engine.requests[1].connection.closed.is_set()
    idle_writer.close()
    busy_writer.close()
    assert busy.at_eof() is False


async def test_closes_on_the_first_byte_of_the_next_request(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(http(b"1"), next_byte, close)
    reader, writer = await connect(scripted_engine)
    await reader.readexactly(len(http(b"1")))
    writer.write(b"P")
    assert await reader.read() == b""
    assert len(scripted_engine.requests) == 1
    writer.close()


async def test_answers_by_a_handler(scripted_engine: ScriptedEngine) -> None:
    async def echo(request: Received, connection: Connection) -> None:
        await connection.send(http(request.body))

    scripted_engine.answer_with(echo)
    async with aiohttp.ClientSession() as session, session.post(scripted_engine.url, json={"a": 1}) as response:
        assert await response.json() == {"a": 1}


async def test_a_script_that_fails_fails_the_test() -> None:
    async def wrong(request: Received, connection: Connection) -> None:
        assert request.body == b"something else"

    engine = ScriptedEngine()
    await engine.start()
    engine.answer_with(wrong)
    reader, writer = await connect(engine)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    with pytest.raises(ExceptionGroup) as failed:
        await engine.close()
    assert failed.group_contains(AssertionError)


async def test_engines_of_one_test_listen_apart_and_can_come_back(
    scripted_engines: Callable[[], Awaitable[ScriptedEngine]],
) -> None:
    first, second = await scripted_engines(), await scripted_engines()
    assert first.port != second.port
    await second.close()
    with pytest.raises(ConnectionRefusedError):
        await connect(second)
    await second.start(second.port)
    reader, writer = await connect(second)
    assert (await reader.read(12)) == b"HTTP/1.1 200"
    writer.close()


@pytest.mark.parametrize("name", ["vllm/chat_stream_usage", "vllm/chat_nonstream", "llamacpp/chat_stream_usage"])
async def test_replays_a_capture(scripted_engine: ScriptedEngine, name: str) -> None:
    scripted_engine.answer(serve_capture(name))
    async with aiohttp.ClientSession() as session, session.post(scripted_engine.url, json={}) as response:
        assert await response.read() == capture(name)[1]


@pytest.mark.parametrize("kind", ["chat/completions", "completions"])
async def test_answers_plainly_what_is_not_scripted(scripted_engine: ScriptedEngine, kind: str) -> None:
    url = f"{scripted_engine.url}/v1/{kind}"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json={}) as response:
            assert (await response.json())["usage"]["total_tokens"] == 5
        async with session.post(url, json=options) as response:
            *_, usage, done, end = (await response.read()).split(b"\n\n")
            assert json.loads(usage.removeprefix(b"data: "))["usage"]["completion_tokens"] == 2
            assert (done, end) == (b"data: [DONE]", b"")


def test_transcripts_have_the_bytes_of_vllm() -> None:
    captured = capture("vllm/chat_stream_usage")[1]
    assert b"".join(transcript(*["\n"] * 4, finish_reason="length", usage=(19, 4))) == captured
    assert usage_event(19, 4) in captured


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_is_being_accepted_while_it_closes_is_cut_too(turns: int) -> None:
    engine = ScriptedEngine()
    await engine.start()
    _, early = await asyncio.open_connection("127.0.0.1", engine.port)
    with socket.socket() as late:
        late.connect(("127.0.0.1", engine.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.close()
    early.close()
