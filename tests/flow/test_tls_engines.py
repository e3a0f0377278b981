"""Engines with TLS: one is spoken to only once it has shown who it is; failing at that is failing to connect."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import certified
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine
from tests.envelope import error_of
from tests.event_source import error_at_end
from tests.transcripts import chat, chunked, head

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}


@asynccontextmanager
async def tls_engine(directory: Path) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine()
    await engine.start(tls=certified(directory)[0])
    try:
        yield engine
    finally:
        await engine.close()


async def test_a_trusted_engine_answers_over_few_connections(
    open_door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_engine(tmp_path) as engine:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
        door = await open_door(engine.url)
        for body in (ASK, STREAM) * 5:
            reply = await door.post(CHAT, body)
            assert reply.status == 200
            assert b"Hello" in reply.body
        assert len({request.connection.id for request in engine.requests}) == 1


async def test_an_engine_that_nobody_vouches_for_is_not_spoken_to(open_door: OpenDoor, tmp_path: Path) -> None:
    async with tls_engine(tmp_path) as engine:
        door = await open_door(engine.url)
        error_of(await door.post(CHAT, ASK), 502, "upstream_error", "upstream_error")
        assert engine.requests == []
        assert (await door.idle()).total("gateway_upstream_attempts_total", result="connect") == 1


async def test_an_engine_of_another_name_is_not_spoken_to(
    open_door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_engine(tmp_path) as engine:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
        door = await open_door(engine.url.replace("127.0.0.1", "localhost"))
        error_of(await door.post(CHAT, ASK), 502, "upstream_error", "upstream_error")
        assert engine.requests == []


async def test_an_engine_that_never_shakes_hands_is_given_up_in_time(open_door: OpenDoor) -> None:
    gone = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        door = await open_door(url, pools={"main": {"timeouts": {"connect": "200ms"}}})
        reply = await door.post(CHAT, ASK)
        error_of(reply, 502, "upstream_error", "upstream_error")
        await asyncio.wait_for(gone.wait(), PROMPTLY_S)
        assert (await door.idle()).total("gateway_upstream_attempts_total", result="connect_timeout") == 1


def _reset(writer: asyncio.StreamWriter) -> None:
    peer = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _half(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x17\x03\x03\0\x40x")
    writer.write_eof()


# What may come where a record of TLS should: each is written below the engine's TLS, to the gateway.
BREAKS: dict[str, Callable[[asyncio.StreamWriter], None]] = {
    "a record that nobody signed": lambda writer: writer.write(b"\x17\x03\x03\0\x40" + b"x" * 64),
    "no record at all": lambda writer: writer.write(b"HTTP/1.1 500 canary\r\n\r\n"),
    "half a record": _half,
    "an alert": lambda writer: writer.write(b"\x15\x03\x03\0\x02\x02\x50"),
    "an end without goodbye": lambda writer: writer.write_eof(),
    "a reset": _reset,
}


@asynccontextmanager
async def wire_before(port: int, spoil: asyncio.Event, how: str) -> AsyncIterator[int]:
    """Carry bytes to and from what listens on `port`; once told to `spoil`, put in what breaks TLS for the client."""
    running: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(2**16):
                sink.write(data)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        answers = asyncio.create_task(copy(server_reader, writer))
        writers.extend((writer, server_writer))
        running.extend((answers, asyncio.create_task(copy(reader, server_writer))))
        await spoil.wait()
        answers.cancel()
        BREAKS[how](writer)

    async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for task in running:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("begun", [True, False], ids=["amid a stream", "before its answer"])
@pytest.mark.parametrize("how", BREAKS)
async def test_tls_that_breaks_is_told_without_a_word_of_the_inside(
    open_door: OpenDoor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
    *,
    begun: bool,
) -> None:
    caplog.set_level("DEBUG")
    never, spoil = asyncio.Event(), asyncio.Event()
    async with tls_engine(tmp_path) as engine, wire_before(engine.port, spoil, how) as port:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
        engine.answer(*((head(), chunked(chat(" Hello")), never) if begun else (never,)))
        url = f"https://127.0.0.1:{port}/canary-path"
        door = await open_door(url, pools={"main": {"attempts": 1, "api_key": "canary-key"}})
        call = asyncio.create_task(door.post(CHAT, STREAM))
        await door.until(lambda s: s.total("gateway_streams_open") == 1 if begun else bool(engine.requests))
        spoil.set()
        reply = await asyncio.wait_for(call, DEADLINE_S)
        if begun:
            assert reply.body.startswith(chat(" Hello"))
            assert error_at_end(reply.body)["code"] == "upstream_error"
        else:
            error_of(reply, 502, "upstream_error", "upstream_error")
        told = f"{reply.headers} {reply.body!r}".lower()
        for inner in (
            "canary",
            "127.0.0.1",
            f":{port}",
            f":{engine.port}",
            "ssl",
            "tls",
            "certificate",
            "error(",
            "reset",
        ):
            assert inner not in told
        samples = await door.idle()
        assert samples.total("gateway_requests_total", outcome="broken" if begun else "upstream_failed") == 1
        logs = [*await door.logged(1), *caplog.messages]
        assert not [line for line in logs if "Traceback" in line or "canary-key" in line]
        assert sum('"inference_id"' in line for line in logs) == 1
