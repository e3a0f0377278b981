"""A gateway that is told to stop while clients do all that clients do: nobody is cut, reset or left waiting."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Reply
from tests.engines import Connection as EngineConnection
from tests.engines import Received, ScriptedEngine, never
from tests.processes import Processes, Running, command, until
from tests.raw_client import RawClient, raw_client
from tests.store_proxy import StoreProxy, proxy_before
from tests.store_server import StoreServer
from tests.transcripts import LAST_CHUNK, answer, chunked, head, http, transcript

pytestmark = pytest.mark.compiled

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
EVENTS = transcript(" a", " b")
# Each is far longer than what is done in it.
DELAY_S, DRAIN_S = 2.0, 2.0
SLOT = {"name": "slots", "per": ["key"], "concurrent": 50}


class Calls:
    """What clients send to a gateway, and what the engine behind it does then."""

    def __init__(self, token: str) -> None:
        self.finish = asyncio.Event()
        self._head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}"
        )

    def asking(self, what: str, *, stream: bool = False) -> bytes:
        body = json.dumps(ASK | {"stream": stream, "messages": [{"role": "user", "content": what}]}).encode()
        return f"{self._head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def engine(self, received: Received, connection: EngineConnection) -> None:
        match received.json()["messages"][0]["content"]:
            case "end in time":
                await connection.send(head() + chunked(EVENTS[0]))
                await self.finish.wait()
                await connection.send(b"".join(map(chunked, EVENTS[1:])) + LAST_CHUNK)
            case "never end":
                await connection.send(head() + chunked(EVENTS[0]))
                await never(connection)
            case _:
                await connection.send(http(answer("chat", "Hi", usage=(3, 2))))


async def new_clients(gateway: Running, calls: Calls, answers: list[Reply]) -> float:
    """Connect and call every tenth of a second until connections are refused; return when that was."""
    while True:
        try:
            async with raw_client(gateway.port) as client:
                answers.append(await client.ask(calls.asking("Hi")))
        except ConnectionRefusedError:
            return asyncio.get_running_loop().time()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("again", [False, True], ids=["told once", "told again"])
async def test_everybody_gets_an_answer_and_nothing_is_left(
    processes: Processes, scripted_engine: ScriptedEngine, store_server: StoreServer, tmp_path: Path, *, again: bool
) -> None:
    os.mkfifo(tmp_path / "keys.json")  # as a file on a disk that hangs: who reads it never returns
    calls = Calls(processes.token())
    scripted_engine.default = calls.engine
    async with proxy_before(store_server.port) as store, AsyncExitStack() as clients:
        gateway = await processes.serve(
            processes.config(
                server={"drain_delay": f"{DELAY_S}s", "drain_timeout": f"{DRAIN_S}s"},
                auth={"issuers": [{"issuer": "hangs", "jwks": str(tmp_path / "keys.json")}]},
                models={"tiny": {"pool": "main"}},
                pools={"main": {"replicas": [scripted_engine.url]}},
                limits={"store": store.url, "store_timeout": "5s", "plans": {"standard": [SLOT]}},
            )
        )
        one, two, idle, waiting, uploading, *streams = [
            await clients.enter_async_context(raw_client(gateway.port)) for _ in range(9)
        ]
        for client in (one, two, idle):
            assert (await client.ask(calls.asking("Hi"))).status == 200
        for client in streams:
            await client.send(calls.asking("never end" if client is streams[0] else "end in time", stream=True))
            await client.until(b"\n\n\r\n")
        store.delay_s = 0.3
        await waiting.send(calls.asking("Hi"))
        whole = calls.asking("Hi")
        await uploading.send(whole[:-20])

        told_at, answers = asyncio.get_running_loop().time(), list[Reply]()
        gateway.send(signal.SIGTERM)
        refused = asyncio.create_task(new_clients(gateway, calls, answers))
        async with processes.session.get(gateway.admin_url + "/livez") as alive:
            assert alive.status == 200
        await until(lambda: not_ready(processes, gateway))
        store.delay_s = 0
        assert asyncio.get_running_loop().time() - told_at < DELAY_S
        for client in (one, two):
            answers.append(await client.ask(calls.asking("Hi")))
        await uploading.send(whole[-20:])
        answers += [await waiting.answer(), await uploading.answer()]
        assert await idle.rest() == b""
        assert (await refused) - told_at >= DELAY_S - 0.05
        assert {(reply.status, reply.headers.get("Connection")) for reply in answers} == {(200, "close")}
        if again:
            for _ in range(3):
                gateway.send(signal.SIGTERM)
        else:
            calls.finish.set()
            for client in streams[1:]:
                assert (await client.until(b"\r\n0\r\n\r\n")).count(b"data: ") == len(EVENTS) - 1
        for client in streams if again else streams[:1]:
            assert await ends_visibly(client)
        assert await gateway.ended(within_s=DELAY_S + DRAIN_S + PROMPTLY_S) == 0
        assert (asyncio.get_running_loop().time() - told_at < DELAY_S + DRAIN_S) == again
    assert "Traceback" not in gateway.log
    with store_server.client() as client:
        assert [key for key in client.scan_iter("gw:*") if client.type(key) == b"zset" and client.zcard(key)] == []
        assert list(client.scan_iter("gw:*:call:*")) == []


async def not_ready(processes: Processes, gateway: Running) -> bool:
    async with processes.session.get(gateway.admin_url + "/readyz") as ready:
        return ready.status == 503


async def ends_visibly(client: RawClient) -> bool:
    rest = await client.rest()
    return b'"code":"draining"' in rest and b"[DONE]" not in rest


async def test_told_to_stop_before_it_is_up_it_ends_well(
    processes: Processes, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    async with proxy_before(store_server.port) as store:
        store.delay_s = 30.0  # what it reads before it listens
        config = processes.config(
            models={"tiny": {"pool": "main"}},
            pools={"main": {"replicas": [scripted_engine.url]}},
            limits={"store": store.url, "store_timeout": "10s", "plans": {"standard": [SLOT]}},
        )
        processes.token()
        starting = await asyncio.create_subprocess_exec(*command(("serve", "--config", str(config))))
        await until(lambda: asked(store))
        starting.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(starting.wait(), PROMPTLY_S) == 0


async def test_told_to_stop_or_reload_before_anything_of_it_is_there_it_does_so(
    processes: Processes, store_server: StoreServer, tmp_path: Path
) -> None:
    """Signals are heard before modules are imported, and a supervisor is told before its first worker is up."""
    async with proxy_before(store_server.port) as store:
        store.delay_s = 30.0  # what a worker reads before it listens
        path = processes.config(
            models={"tiny": {"pool": "main"}},
            pools={"main": {"replicas": ["http://127.0.0.1:1"]}},
            limits={"store": store.url, "store_timeout": "10s", "plans": {"standard": [SLOT]}},
        )
        processes.token()
        hangs = tmp_path / "hangs.yaml"
        os.mkfifo(hangs)  # what it reads before there is anything of it
        for workers, config, ready in (("1", hangs, hears), ("2", path, has_children)):
            words = command(("serve", "--config", str(config), "--workers", workers))
            pipe = asyncio.subprocess.PIPE
            starting = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
            await until(partial(ready, Path(f"/proc/{starting.pid}")))
            starting.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.01)
            starting.send_signal(signal.SIGTERM)
            said = await asyncio.wait_for(starting.communicate(), DEADLINE_S)
            assert (starting.returncode, said) == (0, (b"", b""))


async def hears(proc: Path) -> bool:
    """Whether a process ignores SIGHUP by now."""
    ignored = (proc / "status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) & 1 << (signal.SIGHUP - 1))


async def has_children(proc: Path) -> bool:
    return (proc / "task" / proc.name / "children").read_text() != ""


async def asked(store: StoreProxy) -> bool:
    return store.connections > 0
