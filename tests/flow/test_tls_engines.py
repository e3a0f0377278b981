"""Engines with TLS: one is spoken to only once it has shown who it is; failing at that is failing to connect."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import certified
from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine
from tests.envelope import error_of

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
        await asyncio.wait_for(gone.wait(), 1)
        assert (await door.idle()).total("gateway_upstream_attempts_total", result="connect_timeout") == 1
