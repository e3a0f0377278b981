"""Limits over several gateway processes, of which one has a wrong clock, or which are killed again and again."""

import asyncio
import signal
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from tests.doors import CHAT
from tests.engines import ScriptedEngine
from tests.processes import Processes, Running, until
from tests.store_server import StoreServer
from tests.transcripts import answer, http

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
ROUNDS = 3
HOUR = {"per": ["key"], "window": "1h"}


async def gateways(
    processes: Processes, store: StoreServer, engine: ScriptedEngine, *rules: dict[str, Any], modules: tuple[str, ...]
) -> list[Running]:
    processes.token()
    configs = [
        processes.config(
            models={"tiny": {"pool": "tiny"}},
            pools={"tiny": {"replicas": [engine.url]}},
            limits={"store": store.url, "store_timeout": "5s", "lease": "1s", "plans": {"standard": list(rules)}},
        )
        for _ in modules
    ]
    starts = [processes.serve(config, module=module) for config, module in zip(configs, modules, strict=True)]
    return list(await asyncio.gather(*starts))


@pytest.mark.parametrize(
    "modules",
    [("gateway",) * 4, ("gateway", "gateway", "tests.clock_ahead")],
    ids=["four processes", "a clock that is ahead"],
)
async def test_a_limit_holds_in_sum_over_processes_whatever_their_clocks_say(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine, modules: tuple[str, ...]
) -> None:
    requests = HOUR | {"name": "requests", "requests": 10}
    tokens = HOUR | {"name": "tokens", "per": ["tenant"], "tokens": 500, "count": "output"}
    all_of_them = await gateways(processes, store_server, scripted_engine, requests, tokens, modules=modules)
    for _ in range(200):
        scripted_engine.answer(http(answer("chat", "Hi", usage=(3, 50))))
    statuses: list[int] = []
    for key in ("key-1", "key-2"):
        token = processes.token(key=key)
        replies = [await processes.post(all_of_them[n % len(modules)], CHAT, ASK, token=token) for n in range(60)]
        statuses.append(sum(reply.status == 200 for reply in replies))
        assert {reply.status for reply in replies} <= {200, 429}
    # Ten calls of the first key are all that its requests, and its tenant's tokens, allow.
    assert statuses == [10, 0]
    assert len(scripted_engine.requests) == 10


async def test_gateways_killed_again_and_again_under_load_leave_no_key_for_ever_and_no_slot_taken(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine
) -> None:
    rules = [
        HOUR | {"name": "requests", "requests": 10**6},
        {"name": "tokens", "per": ["tenant"], "tokens": 10**9, "window": "month"},
        {"name": "slots", "per": ["key"], "concurrent": 40},
    ]
    token = processes.token()
    lasting: set[bytes] = set()

    async def load(running: Running) -> None:
        with suppress(aiohttp.ClientError):
            while True:
                await processes.post(running, CHAT, ASK, token=token)

    async def served(count: int) -> None:
        await until(lambda: _reached(scripted_engine, count))

    with store_server.client() as client:
        for _ in range(ROUNDS):
            running = await gateways(processes, store_server, scripted_engine, *rules, modules=("gateway",) * 2)
            calls = [asyncio.create_task(load(one)) for one in running for _ in range(8)]
            await served(len(scripted_engine.requests) + 40)
            for one in running:
                one.send(signal.SIGKILL)
            await asyncio.gather(*calls)
            lasting |= {key for key in client.scan_iter("*") if client.ttl(key) == -1}
        assert lasting == set()

        async def nothing_is_held() -> bool:
            return not list(client.scan_iter("gw:*slots*"))

        await until(nothing_is_held)


async def _reached(engine: ScriptedEngine, count: int) -> bool:
    return len(engine.requests) >= count
