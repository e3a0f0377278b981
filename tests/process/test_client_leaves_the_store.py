"""Clients that leave while the shared store is asked: no engine is, and what the store took is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.leaving import How, client_of
from tests.store_proxy import StoreProxy, proxy_before
from tests.store_server import StoreServer

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
RULES = [
    {"name": "one", "per": ["key"], "concurrent": 1},
    {"name": "requests", "per": ["key"], "requests": 1000, "window": "month"},
    {"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "month"},
]
WAYS = pytest.mark.parametrize("how", ["fin", "reset", "half-close"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@asynccontextmanager
async def delayed(
    open_door: OpenDoor, engine: ScriptedEngine, server: StoreServer
) -> AsyncIterator[tuple[Door, StoreProxy]]:
    """Open a gateway whose store answers late, once it has answered its first call."""
    async with proxy_before(server.port) as proxy:
        limits = {"store": proxy.url, "store_timeout": "5s", "plans": {"standard": RULES}}
        door = await open_door(engine.url, limits=limits)
        assert (await door.post(CHAT, ASK)).status == 200
        await reserved(server, slots=0)
        proxy.delay_s = 1.5  # longer than a machine stands still: clients leave before
        yield door, proxy
        await door.gateway.stop()  # while the proxy is there


async def reserved(server: StoreServer, *, slots: int) -> None:
    """Wait until that many calls hold a slot in the store."""
    with server.client() as client:
        async with asyncio.timeout(DEADLINE_S):
            while sum(client.zcard(key) for key in client.scan_iter("*one*") if client.type(key) == b"zset") != slots:
                await asyncio.sleep(0.01)


@STREAM
@WAYS
async def test_a_client_that_leaves_while_its_call_is_reserved(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer, how: How, *, stream: bool
) -> None:
    async with delayed(open_door, scripted_engine, store_server) as (door, proxy):
        async with client_of(door) as client:
            await client.ask(door, ASK | {"stream": stream})
            await reserved(store_server, slots=1)
            client.leave(how)
            samples = await door.until(lambda s: s.total("gateway_requests_total", outcome="client_gone") == 1)
        assert samples.total("gateway_requests_total", status="499") == 1
        await reserved(store_server, slots=0)
        proxy.delay_s = 0
        reply = await door.post(CHAT, ASK)
        assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, "998")
        assert reply.headers["x-ratelimit-remaining-tokens"] == "898"
        assert len(scripted_engine.requests) == 2
