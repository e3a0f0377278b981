"""Streams at once: each event reaches its client when its engine sent it, by itself, and nothing waits for the next."""

import asyncio
import json
import logging
import random
import re
from typing import Any

from gateway.clock import SystemClock
from tests.doors import CHAT
from tests.engines import Connection, Received, ScriptedEngine
from tests.processes import Processes
from tests.transcripts import DONE, LAST_CHUNK, chat, chunked, head

STREAM: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
STREAMS, EVENTS, PACE_S = 100, 10, 0.2
MEDIAN_S, P99_S = 0.020, 0.050
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


async def paced(_: Received, connection: Connection) -> None:
    """Stream events that say when they were sent."""
    await asyncio.sleep(random.random() * PACE_S)
    await connection.send(head())
    for n in range(EVENTS):
        last = "stop" if n == EVENTS - 1 else None
        await connection.send(chunked(chat(f"at {CLOCK.monotonic():.6f} ", finish_reason=last, system_fingerprint="f")))
        await asyncio.sleep(PACE_S)
    await connection.send(chunked(DONE) + LAST_CHUNK)


async def delays(port: int, request: bytes) -> list[float]:
    """Return how long after it was sent each event of all streams came; each must come in a read of its own."""
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: Client(request), "127.0.0.1", port))[1] for _ in range(STREAMS)]
    async with asyncio.timeout(30):
        await asyncio.gather(*[client.ended.wait() for client in clients])
    found = []
    for client in clients:
        stamps = [(came, re.findall(rb'"at ([\d.]+) ', data)) for came, data in client.reads]
        assert [len(sent) for _, sent in stamps if sent] == [1] * EVENTS
        found += [came - float(sent[0]) for came, sent in stamps if sent]
        fields = client.reads[0][1].partition(b"\r\n\r\n")[0].lower()
        assert b"content-length" not in fields
        assert b"content-encoding" not in fields
    return sorted(found)


async def test_events_are_passed_on_at_once(processes: Processes, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.default = paced
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
    direct = await delays(scripted_engine.port, request)
    through = await delays(gateway.port, request)
    figures = [1000 * row[len(row) * part // 100] for row in (direct, through) for part in (50, 99)]
    _log.info("direct: median %.2f ms, p99 %.2f ms; through the gateway: %.2f ms, %.2f ms", *figures)
    assert through[len(through) // 2] < MEDIAN_S + direct[len(direct) // 2]
    assert through[len(through) * 99 // 100] < P99_S + direct[len(direct) * 99 // 100]
