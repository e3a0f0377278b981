"""A call that is made good, or falls back, is one request and one usage: in the server, the ledger and metrics."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine
from tests.store_server import StoreServer
from tests.transcripts import http

ASK = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
ILL, FULL = http(b"", status="500 X"), http(b"", status="503 X")
RULES = [
    {"name": "calls", "per": ["key"], "requests": 100, "window": "day"},
    {"name": "by-model", "per": ["model"], "requests": 100, "window": "day"},
    {"name": "by-pool", "per": ["pool"], "tokens": 100, "window": "day", "count": "output"},
    {"name": "at-once", "per": ["key", "model"], "concurrent": 5},
]


@pytest.mark.parametrize(
    ("failures", "answers"), [((FULL,), "small"), ((ILL, ILL), "big")], ids=["made good", "falls back"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_whoever_answers_after_failures_is_charged_once(
    open_door: OpenDoor,
    scripted_engines: Callable[[], Awaitable[ScriptedEngine]],
    store_server: StoreServer,
    failures: tuple[bytes, ...],
    answers: str,
    *,
    stream: bool,
) -> None:
    first, second, big = [await scripted_engines() for _ in range(3)]
    door = await open_door(
        big.url,
        models={"small": {"pool": "small", "fallbacks": ["big"]}, "big": {"pool": "main"}},
        pools={"small": {"replicas": [{"url": first.url, "weight": 1000}, second.url]}},
        limits={"store": store_server.url, "store_timeout": "5s", "plans": {"standard": RULES}},
    )
    for engine, failure in zip((first, second), failures, strict=False):
        engine.answer(failure)
    reply = await door.post(CHAT, ASK | {"stream": stream})
    assert (reply.status, reply.headers["x-gateway-model"]) == (200, answers)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", endpoint="chat") == 1
    assert samples.total("gateway_tokens_total", model=answers, kind="completion") == 2
    assert samples.total("gateway_tokens_total", kind="completion") == 2
    assert samples.total("gateway_upstream_attempts_total") == len(failures) + 1
    with store_server.client(decode_responses=True) as client:
        async with asyncio.timeout(DEADLINE_S):  # settlements wait a moment for company
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
            f"calls key-1 {answers}": "1",
            f"prompt_tokens key-1 {answers}": "3",
            f"completion_tokens key-1 {answers}": "2",
        }
    rows = (await door.get("/v1/usage?group_by=model")).json()["data"]
    assert [(row["model"], row["calls"], row["refused"]) for row in rows] == [(answers, 1, 0)]
