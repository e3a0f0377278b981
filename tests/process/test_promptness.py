"""Streams at once: each event reaches its client when its engine sent it, by itself, and nothing waits for the next."""

import asyncio
import json
import logging
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.doors import CHAT
from tests.engines import Connection, Received, ScriptedEngine
from tests.nginx import nginx_before
from tests.processes import Processes
from tests.transcripts import DONE, LAST_CHUNK, chat, chunked, head

pytestmark = pytest.mark.alone

STREAM: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
STREAMS, EVENTS, PACE_S = 100, 10, 0.2
MEDIAN_S, P99_S = 0.020, 0.050
TRIES = 3  # a machine that stands still for a moment is late in one of them
CLOCK = SystemClock()
_log = logging.getLogger(__name__)


class Client(asyncio.Protocol):
    """A client that notes when each read came."""

    def __init__(self, request: bytes) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.ended = asyncio.Event()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.reads.append((CLOCK.monotonic(), data))
        if data.endswith(LAST_CHUNK):
            self.ended.set()
            self.transport.close()

    @property
    def head(self) -> bytes:
        return b"".join(data for _, data in self.reads).partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        """What came, without its framing."""
        framed, body = b"".join(data for _, data in self.reads).partition(b"\r\n\r\n")[2], b""
        while size := int(framed.partition(b"\r\n")[0], 16):
            body += framed.partition(b"\r\n")[2][:size]
            framed = framed.partition(b"\r\n")[2][size + 2 :]
        return body


class Paced:
    """Answers with streams whose events say when they were sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []  # the body of each stream

    async def __call__(self, _: Received, connection: Connection) -> None:
        await asyncio.sleep(random.random() * PACE_S)
        await connection.send(head())
        body = b""
        for n in range(EVENTS):
            last = "stop" if n == EVENTS - 1 else None
            event = chat(f"at {CLOCK.monotonic():.6f} ", finish_reason=last, system_fingerprint="f")
            body += event
            await connection.send(chunked(event))
            await asyncio.sleep(PACE_S)
        self.sent.append(body + DONE)
        await connection.send(chunked(DONE) + LAST_CHUNK)


@dataclass(frozen=True)
class Row:
    """How long after it was sent each event of all streams came, and whether each did in a read of its own."""

    delays: list[float]
    one_by_one: bool

    def at(self, percent: int) -> float:
        return self.delays[len(self.delays) * percent // 100]

    def prompt(self, direct: "Row") -> bool:
        """Whether events came by themselves, and hardly later than without what is between."""
        return self.one_by_one and self.at(50) < MEDIAN_S + direct.at(50) and self.at(99) < P99_S + direct.at(99)


async def measured(engine: ScriptedEngine, port: int, request: bytes) -> Row:
    """Measure streams through whatever listens there; their bytes must be those that the engine sent."""
    loop, paced = asyncio.get_running_loop(), Paced()
    engine.default = paced
    clients = [(await loop.create_connection(lambda: Client(request), "127.0.0.1", port))[1] for _ in range(STREAMS)]
    async with asyncio.timeout(30):
        await asyncio.gather(*[client.ended.wait() for client in clients])
    assert sorted(client.body for client in clients) == sorted(paced.sent)
    found, one_by_one = [], True
    for client in clients:
        stamps = [(came, re.findall(rb'"at ([\d.]+) ', data)) for came, data in client.reads]
        one_by_one &= [len(sent) for _, sent in stamps if sent] == [1] * EVENTS
        found += [came - float(at) for came, sent in stamps for at in sent]
        assert b"content-length" not in client.head
        assert b"content-encoding" not in client.head
    return Row(sorted(found), one_by_one)


async def test_events_are_passed_on_at_once_also_through_an_nginx_that_buffers(
    processes: Processes, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    """An nginx before the gateway is left at its defaults: the gateway tells it by a header not to buffer."""
    config = processes.config(
        models={"tiny": {"pool": "main"}},
        pools={"main": {"replicas": [scripted_engine.url]}},
        limits={"plans": {"standard": []}},
    )
    token = processes.token()
    gateway = await processes.serve(config)
    body = json.dumps(STREAM).encode()
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    request = f"{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with nginx_before(gateway.port, tmp_path) as nginx:
        for _ in range(TRIES):
            direct = await measured(scripted_engine, scripted_engine.port, request)
            through = await measured(scripted_engine, gateway.port, request)
            behind_nginx = await measured(scripted_engine, nginx, request)
            rows = {"direct": direct, "through the gateway": through, "and nginx": behind_nginx}
            told = [
                f"{name}: median {1000 * r.at(50):.2f} ms, p99 {1000 * r.at(99):.2f} ms" for name, r in rows.items()
            ]
            _log.info("; ".join(told))
            if through.prompt(direct) and behind_nginx.prompt(direct):
                break
        else:
            pytest.fail("; ".join(told))
