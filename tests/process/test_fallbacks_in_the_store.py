"""A whole call that falls back after failures is one request and one usage: in the server, the ledger and metrics."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine
from tests.store_server import StoreServer
from tests.transcripts import http

ASK = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
ILL = http(b"", status="500 X")
RULES = [
    {"name": "calls", "per": ["key"], "requests": 100, "window": "day"},
    {"name": "by-model", "per": ["model"], "requests": 100, "window": "day"},
    {"name": "by-pool", "per": ["pool"], "tokens": 100, "window": "day", "count": "output"},
    {"name": "at-once", "per": ["key", "model"], "concurrent": 5},
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_after_two_failures_a_fallback_is_charged_once(
    open_door: OpenDoor,
    scripted_engines: Callable[[], Awaitable[ScriptedEngine]],
    store_server: StoreServer,
    *,
    stream: bool,
) -> None:
    first, second, big = [await scripted_engines() for _ in range(3)]
    door = await open_door(
        big.url,
        models={"small": {"pool": "small", "fallbacks": ["big"]}, "big": {"pool": "main"}},
        pools={"small": {"replicas": [first.url, second.url]}},
        limits={"store": store_server.url, "plans": {"standard": RULES}},
    )
    for engine in (first, second):
        engine.answer(ILL)
    reply = await door.post(CHAT, ASK | {"stream": stream})
    assert (reply.status, reply.headers["x-gateway-model"]) == (200, "big")
    samples = await door.idle()
    assert samples.total("gateway_requests_total", endpoint="chat") == 1
    assert samples.total("gateway_tokens_total", model="big", kind="completion") == 2
    assert samples.total("gateway_tokens_total", kind="completion") == 2
    assert samples.total("gateway_upstream_attempts_total") == 3
    with store_server.client(decode_responses=True) as client:
        async with asyncio.timeout(5):  # settlements wait a moment for company
            while client.keys("gw:*:call:*"):
                await asyncio.sleep(0.005)
        counts = {key: client.get(key).split()[0] for key in client.keys("gw:*") if client.type(key) == "string"}
        assert sorted((key.split(":")[2], used) for key, used in counts.items()) == [
            ("by-model", "1"),
            ("by-pool", "2"),
            ("calls", "1"),
        ]
        assert not client.keys("gw:*:at-once:*")
        [ledger] = client.keys("gw:*:ledger:*")
        assert client.hgetall(ledger) == {
            "tenant": "acme",
            "calls key-1 big": "1",
            "prompt_tokens key-1 big": "3",
            "completion_tokens key-1 big": "2",
        }
    rows = (await door.get("/v1/usage?group_by=model")).json()["data"]
    assert [(row["model"], row["calls"], row["refused"]) for row in rows] == [("big", 1, 0)]
