"""The measuring of fairness: what nine tenants get of a pool that is full, alone and beside one that floods it.

Each tenant has callers that send the next call when the last is answered. The engine takes as long for every call, and
the gateway lends so many of its places; whoever finds none waits.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import percentile
from bench.processes import cores, free_port, running
from gateway.clock import SystemClock
from gateway.identity import development

MODEL = "bench/fair"
NINE = tuple(f"tenant-{number}" for number in range(9))
FLOOD = "flood"
_UP_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """Callers of each of the nine and of the flood; places at the engine; what a call takes; how long it goes on."""

    callers: int = 2
    flood: int = 50 * 2 * len(NINE)
    places: int = 24
    tokens: int = 40
    tokens_per_s: float = 100
    seconds: float = 20


FULL = Load()
QUICK = Load(flood=100, tokens=20, seconds=3)


@dataclass(frozen=True, slots=True)
class Result:
    """Calls a second of the nine together, of the one of them that got least, and of the flood; waits in ms."""

    nine: float
    least: float
    flood: float
    p50_ms: float
    p99_ms: float


def measure(load: Load) -> tuple[Result, Result]:
    """Return what the nine got alone, and beside the flood. Raises RuntimeError for any answer that is wrong."""
    with _stand(load) as (url, tokens):
        alone = asyncio.run(_run(url, tokens, load, flood=0))
        flooded = asyncio.run(_run(url, tokens, load, flood=load.flood))
    return alone, flooded


def table(load: Load) -> str:
    """Return both as Markdown, and what the nine kept."""
    alone, flooded = measure(load)
    lines = [
        "| load                  | nine calls/s | the least of them | p50 ms | p99 ms | flood calls/s |",
        "|-----------------------|-------------:|------------------:|-------:|-------:|--------------:|",
    ]
    for name, one in (("nine tenants", alone), ("nine beside the flood", flooded)):
        lines.append(
            f"| {name:21} | {one.nine:12.1f} | {one.least:17.2f} | {one.p50_ms:6.0f} | {one.p99_ms:6.0f} "
            f"| {one.flood:13.1f} |"
        )
    kept = f"kept: {flooded.nine / alone.nine:.0%} of all, {flooded.least / alone.least:.0%} by the one that got least"
    return "\n".join([*lines, "", kept])


@contextmanager
def _stand(load: Load) -> Iterator[tuple[str, dict[str, str]]]:
    """Run an engine and a gateway; give the gateway's URL and a token for each tenant."""
    engine, port, admin = free_port(), free_port(), free_port()
    ours, others = cores()
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
        path = Path(folder)
        key = development.load_or_create(path / "key.pem")
        now = SystemClock().now()
        tokens = {
            tenant: development.sign(key, tenant=tenant, key_id="k", plan=None, ttl_s=3600, now=now)
            for tenant in (*NINE, FLOOD)
        }
        (path / "config.yaml").write_text(json.dumps(_config(load, path / "key.pem", engine, port, admin)))
        gateway = [sys.executable, "-m", "gateway"]
        simulated = [*gateway, "engine", "--model", MODEL, "--port", str(engine)]
        simulated += ["--tokens-per-second", str(load.tokens_per_s)]
        serve = [*gateway, "serve", "--config", str(path / "config.yaml")]
        with running(simulated, on=others, log=path / "engine"), running(serve, on=ours, log=path / "gateway"):
            for page in (f"http://127.0.0.1:{engine}/health", f"http://127.0.0.1:{admin}/readyz"):
                asyncio.run(_up(page))
            yield f"http://127.0.0.1:{port}/v1/chat/completions", tokens


def _config(load: Load, key: Path, engine: int, port: int, admin: int) -> dict[str, Any]:
    pool = {
        "replicas": [f"http://127.0.0.1:{engine}"],
        "max_in_flight": load.places,
        "queue": {"max_waiting": 2 * load.flood, "max_wait": "120s"},
    }
    return {
        "server": {"listen": f"127.0.0.1:{port}", "watch_config": None},
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "auth": {"development_key": str(key)},
        "limits": {"plans": {"standard": []}},
        "models": {MODEL: {"pool": "fair"}},
        "pools": {"fair": pool},
        "logging": {"level": "warning"},
    }


async def _up(url: str) -> None:
    async with asyncio.timeout(_UP_WITHIN_S), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)


async def _run(url: str, tokens: dict[str, str], load: Load, *, flood: int) -> Result:
    """Have everybody call for `load.seconds`, after a second in which they begin."""
    answered: Counter[str] = Counter()
    took: defaultdict[str, list[float]] = defaultdict(list)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": load.tokens}

    async def call_on(session: aiohttp.ClientSession, tenant: str, begin: float, end: float) -> None:
        headers = {"Authorization": f"Bearer {tokens[tenant]}"}
        while (at := time.perf_counter()) < end:
            async with session.post(url, json=body, headers=headers) as response:
                await response.read()
                if response.status != 200:
                    raise RuntimeError(f"a call of {tenant} was answered {response.status}")
            ended = time.perf_counter()
            if begin <= ended < end:  # calls of the flood wait for longer than the measuring takes
                answered[tenant] += 1
                if begin <= at:
                    took[tenant].append(ended - at)

    begin = time.perf_counter() + 1
    callers = [*(NINE * load.callers), *([FLOOD] * flood)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*[call_on(session, tenant, begin, begin + load.seconds) for tenant in callers])
    of_nine = [seconds * 1e3 for tenant in NINE for seconds in took[tenant]]
    rates = [answered[tenant] / load.seconds for tenant in NINE]
    return Result(
        sum(rates),
        min(rates),
        answered[FLOOD] / load.seconds,
        percentile(of_nine, 50),
        percentile(of_nine, 99),
    )
