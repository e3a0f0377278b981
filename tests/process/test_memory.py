"""What a gateway process holds for clients that do not read: a bounded part of each stream, and nothing afterwards."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from tests.doors import CHAT
from tests.engines import ScriptedEngine, flood, script
from tests.processes import Loop, Processes, Running
from tests.raw_client import raw_client
from tests.transcripts import answer, chat, chunked, head, http

pytestmark = pytest.mark.compiled

STREAM: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
EVENT = chunked(chat("x" * 4000) * 16)
CLIENTS = 50  # of each kind
WARM = 100
# A transport holds 64 KiB before it asks for a pause, and on top of that what one read brought: 256 KiB with uvloop.
# Pieces of that size leave gaps between them; 430 KiB were seen.
HELD_BYTES = 2 * (64 + 256) * 1024
# What the process may take besides: it has just begun to work.
SLACK_BYTES = 16 * 2**20

UPLOADS, UPLOAD_BYTES, BUDGET_BYTES = 100, 10_000_000, 128 * 2**20
# A body is there as it came and as it goes to its engine, and for a moment as what is read in it.
COPIES = 2.5
_log = logging.getLogger(__name__)


class Reader:
    """A client that asks for a stream and reads it at its own pace."""

    def __init__(self, gateway: Running, token: str, *, window: int | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        if window is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._socket.setblocking(False)
        self._port = gateway.port
        self._token = token

    async def ask(self) -> None:
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        body = json.dumps(STREAM).encode()
        fields = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
        fields += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await self._loop.sock_sendall(self._socket, fields.encode() + body)

    async def trickle(self) -> None:
        """Read a kilobyte a second, in tenths."""
        while True:
            await self._loop.sock_recv(self._socket, 100)
            await asyncio.sleep(0.1)

    def close(self) -> None:
        self._socket.close()


async def storm(gateway: Running, engine: ScriptedEngine, token: str, *, before: int) -> int:
    """Let clients ask and read slowly or not at all, then leave; return the most memory that was taken meanwhile."""
    readers = [
        *[Reader(gateway, token) for _ in range(CLIENTS)],  # read a kilobyte a second
        *[Reader(gateway, token) for _ in range(CLIENTS)],  # never read
        *[Reader(gateway, token, window=4096) for _ in range(CLIENTS)],  # never read, and close their window at once
    ]
    await asyncio.gather(*[reader.ask() for reader in readers])
    trickling = [asyncio.create_task(reader.trickle()) for reader in readers[:CLIENTS]]
    await engine.asked(before + len(readers))
    most = 0
    for _ in range(20):
        most = max(most, gateway.memory)
        await asyncio.sleep(0.1)
    for task in trickling:
        task.cancel()
    await asyncio.wait(trickling)
    for reader in readers:
        reader.close()
    await asyncio.gather(*[request.connection.gone() for request in engine.requests[before:]])
    return most


@pytest.mark.parametrize(("loop", "storms"), [("uvloop", 2), ("asyncio", 1)])
async def test_clients_that_read_slowly_or_not_at_all_cost_a_bounded_part_of_their_streams(
    processes: Processes, scripted_engine: ScriptedEngine, loop: Loop, storms: int
) -> None:
    """An engine has hundreds of megabytes for each; it waits, and what was held serves the next ones."""
    config = processes.config(
        models={"tiny": {"pool": "main"}},
        pools={"main": {"replicas": [scripted_engine.url]}},
        limits={"plans": {"standard": []}},
    )
    token = processes.token()
    gateway = await processes.serve(config, loop=loop)
    for _ in range(WARM):
        assert (await processes.post(gateway, CHAT, STREAM, token=token)).status == 200
    idle = gateway.memory
    scripted_engine.default = script(head(), flood(EVENT))
    streams, peaks = 3 * CLIENTS, list[int]()
    for rounds in range(storms):
        most = await storm(gateway, scripted_engine, token, before=WARM + rounds * streams)
        peaks.append(most - idle)
    _log.info("at most %d KiB for each of %d streams", max(peaks) // streams // 1024, streams)
    assert max(peaks) < streams * HELD_BYTES + SLACK_BYTES
    assert peaks[-1] < peaks[0] + SLACK_BYTES


async def upload(gateway: Running, token: str) -> int:
    """Send a call of ten megabytes as fast as it is taken; return the status that it is answered with."""
    body = b'{"model":"tiny","messages":[{"role":"user","content":"%b"}]}' % (b"a" * UPLOAD_BYTES)
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    async with raw_client(gateway.port) as client:
        sending = asyncio.create_task(client.send(f"{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body))
        status = (await client.answer(within_s=60)).status
        sending.cancel()
        await asyncio.wait({sending})
        return status


async def test_many_large_bodies_at_once_take_no_more_than_their_budget(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    """Uploads of a gigabyte in all; what gets through is held at its engine."""
    config = processes.config(
        server={"body_budget": f"{BUDGET_BYTES}B"},
        models={"tiny": {"pool": "main"}},
        pools={
            "main": {"replicas": [scripted_engine.url], "timeouts": {"connect": "30s"}, "health": {"interval": "1h"}}
        },
        limits={"plans": {"standard": []}},
    )
    token = processes.token()
    gateway = await processes.serve(config)
    assert await upload(gateway, token) == 200
    idle, go = gateway.memory, asyncio.Event()
    scripted_engine.default = script(go, http(answer("chat", "Hello", usage=(3, 1))))
    uploads = {asyncio.create_task(upload(gateway, token)) for _ in range(UPLOADS)}
    most, fit = 0, BUDGET_BYTES // UPLOAD_BYTES
    async with asyncio.timeout(60):
        while sum(one.done() for one in uploads) < UPLOADS - fit:
            most = max(most, gateway.memory - idle)
            await asyncio.sleep(0.02)
    go.set()
    statuses = [await one for one in uploads]
    _log.info("%d MiB at most for bodies of %d MiB", most // 2**20, BUDGET_BYTES // 2**20)
    assert (statuses.count(200), statuses.count(503)) == (fit, UPLOADS - fit)
    assert most < COPIES * BUDGET_BYTES + SLACK_BYTES
    assert await upload(gateway, token) == 200
