"""Gateways that share a port are restarted in turn, and clients that stream and keep their connections see nothing."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.doors import CHAT
from tests.engines import ScriptedEngine
from tests.ports import free_port
from tests.processes import Processes, Running, run, until
from tests.raw_client import RawClient, raw_client
from tests.store_server import StoreServer
from tests.transcripts import LAST_CHUNK, chunked, head, transcript

CLIENTS = 12
# How long who keeps a connection has to be told to leave it: far longer than a stream and the next one take.
DELAY = "1500ms"
EVENTS = [chunked(event) for event in transcript(*[f" {number}" for number in range(8)])]
STREAM: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


async def slowly(request: Any, connection: Any) -> None:
    await connection.send(head())
    for event in EVENTS:
        await connection.send(event)
        await asyncio.sleep(0.01)
    await connection.send(LAST_CHUNK)


@dataclass
class Seen:
    """What the clients saw."""

    answers: int = 0
    moves: int = 0
    wrong: list[str] = field(default_factory=list)


async def stream_on(port: int, request: bytes, seen: Seen, done: asyncio.Event) -> None:
    """Stream again and again, on one connection for as long as the answers allow it."""
    while not done.is_set():
        try:
            async with raw_client(port) as client:
                while not done.is_set() and await stream_once(client, request, seen):
                    pass
        except (OSError, asyncio.IncompleteReadError, TimeoutError, AssertionError) as error:
            seen.wrong.append(repr(error))
            return
        seen.moves += 1


async def stream_once(client: RawClient, request: bytes, seen: Seen) -> bool:
    answer = await client.ask(request)
    if answer.status != 200 or not answer.body.endswith(b"data: [DONE]\n\n"):
        seen.wrong.append(f"{answer.status} {answer.body[-200:]!r}")
    seen.answers += 1
    return answer.headers.get("Connection") != "close"


@asynccontextmanager
async def under_load(port: int, token: str) -> AsyncIterator[None]:
    """Have clients stream all the while, each on its connection; nothing goes wrong, and all have to move."""
    body = json.dumps(STREAM).encode()
    fields = f"Host: a\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\n"
    request = f"POST {CHAT} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body
    seen, done = Seen(), asyncio.Event()
    clients = [asyncio.create_task(stream_on(port, request, seen, done)) for _ in range(CLIENTS)]
    yield
    done.set()
    await asyncio.gather(*clients)
    assert seen.wrong == []
    assert seen.moves > CLIENTS
    assert seen.answers > 10 * CLIENTS


async def restarted(processes: Processes, gateway: Running, config: Any) -> Running:
    gateway.send(signal.SIGTERM)
    assert await gateway.ended() == 0
    return await processes.serve(config)


async def test_gateways_on_one_port_are_restarted_in_turn_and_no_client_notices(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.default = slowly
    listen = f"127.0.0.1:{free_port()}"
    configs = [
        processes.config(
            server={"listen": listen, "reuse_port": True, "drain_delay": DELAY},
            models={"tiny": {"pool": "main"}},
            pools={"main": {"replicas": [scripted_engine.url]}},
        )
        for _ in range(2)
    ]
    token = processes.token()
    both = list(await asyncio.gather(*map(processes.serve, configs)))
    async with under_load(both[0].port, token):
        for _ in range(2):
            for number, config in enumerate(configs):
                both[number] = await restarted(processes, both[number], config)
    for gateway in both:
        assert "Traceback" not in gateway.log


async def test_workers_are_replaced_in_turn_and_no_client_notices(
    processes: Processes, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    scripted_engine.default = slowly
    config = processes.config(
        server={"workers": 2, "drain_delay": DELAY},
        models={"tiny": {"pool": "main"}},
        pools={"main": {"replicas": [scripted_engine.url]}},
        limits={"store": store_server.url, "store_timeout": "5s", "plans": {"standard": []}},
    )
    token = processes.token()
    gateway = await processes.serve(config)

    told: list[int] = []

    async def replaced() -> bool:
        samples = await gateway.metrics(processes.session)
        restarts = samples.total("gateway_worker_restarts_total")
        return samples.total("gateway_workers", state="answering") == 2 and restarts == len(told)

    async with under_load(gateway.port, token):
        for worker in gateway.workers:
            os.kill(worker, signal.SIGTERM)
            told.append(worker)
            await until(replaced)
    gateway.send(signal.SIGTERM)
    assert await gateway.ended() == 0
    assert "Traceback" not in gateway.log


async def test_a_port_is_shared_only_with_gateways_that_are_told_to(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    sharing, alone = [
        processes.config(
            server={"listen": listen, "reuse_port": shared},
            models={"tiny": {"pool": "main"}},
            pools={"main": {"replicas": [scripted_engine.url]}},
        )
        for shared in (True, False)
    ]
    processes.token()
    await processes.serve(sharing)
    ended = await run("serve", "--config", str(alone))
    assert ended.code == 1
    assert ended.stderr.startswith(f"server.listen: cannot listen on {listen}: Address already in use.")
