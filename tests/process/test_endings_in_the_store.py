"""Whole calls before a real server that end in every way: slots come free, and what is charged is what was used."""

import asyncio
from collections import Counter
from typing import Any

from tests import slots
from tests.doors import CHAT, Door, OpenDoor, Samples
from tests.engines import ScriptedEngine
from tests.journals import booked, until
from tests.reloading import put, reload
from tests.slots import ASK
from tests.store_server import StoreServer
from tests.transcripts import answer, http

DAY: dict[str, Any] = {"per": ["key"], "window": "day"}
RULES = [
    DAY | {"name": "calls", "requests": 10_000},
    DAY | {"name": "tokens", "tokens": 10**6},
    slots.SLOTS,
]


class Books:
    """What a server holds of the only key there is, beside what the gateway's metrics say."""

    def __init__(self, door: Door, server: StoreServer) -> None:
        self._door = door
        self._server = server

    async def closed(self) -> Counter[str]:
        """Wait until no call is under way; check that all agree, and return what was used, and how many slots are."""
        samples = await self._door.idle()
        with self._server.client() as client:

            def used(name: str) -> int:
                return sum(int(str(client.get(key), "ascii").split()[0]) for key in client.scan_iter(f"gw:*:{name}:*"))

            await until(lambda: [key for key in client.scan_iter("gw:*:call:*") if client.get(key) != b"refused"] == [])
            books = Counter(
                calls=used("calls"),
                tokens=used("tokens"),
                slots=sum(client.zcard(key) for key in client.scan_iter("gw:*:slots:*")),
            )
            told = booked(client)
        assert books["tokens"] == told["prompt_tokens"] + told["completion_tokens"] == tokens_of(samples)
        assert books["slots"] == 0
        return books


def tokens_of(samples: Samples) -> float:
    return sum(samples.total("gateway_tokens_total", kind=kind) for kind in ("prompt", "completion"))


async def test_after_twenty_of_every_ending_two_run_at_once_and_only_what_an_engine_took_is_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    limits = {"store": store_server.url, "store_timeout": "5s", "plans": {"standard": RULES}}
    door = await open_door(scripted_engine.url, pools={"main": {"breaker": None}}, limits=limits)
    books = Books(door, store_server)
    before = await books.closed()
    for name, (_, status) in slots.ENDINGS.items():
        assert await reload(door, put("pools/main/timeouts", slots.timeouts(name))) == []
        await slots.end(door, scripted_engine, name)
        after = await books.closed()
        assert after["calls"] - before["calls"] == (0 if status >= 500 else slots.ROUNDS), name
        assert (after["tokens"] > before["tokens"]) is (status == 200), name
        await slots.exactly_two_run(door, scripted_engine)
        before = await books.closed()
    for name in slots.LEFT:
        await slots.leave(door, scripted_engine, name)
        after = await books.closed()
        assert after["calls"] - before["calls"] == slots.ROUNDS, name
        await slots.exactly_two_run(door, scripted_engine)
        before = await books.closed()


async def test_after_a_call_that_never_fits_nine_of_a_tenth_run_at_once(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, store_server: StoreServer
) -> None:
    rules = [DAY | {"name": "calls", "requests": 10}, DAY | {"name": "tokens", "tokens": 1000, "count": "output"}]
    for store in ("memory", store_server.url):
        door = await open_door(
            scripted_engine.url, limits={"store": store, "store_timeout": "5s", "plans": {"standard": rules}}
        )
        assert (await door.post(CHAT, ASK | {"max_tokens": 2000})).status == 429
        go, asked = asyncio.Event(), len(scripted_engine.requests)
        for _ in range(9):
            scripted_engine.answer(go, http(answer("chat", "Hi", usage=(3, 100))))
        calls = [asyncio.create_task(door.post(CHAT, ASK | {"max_tokens": 100})) for _ in range(9)]
        await scripted_engine.asked(asked + 9)
        assert (await door.post(CHAT, ASK | {"max_tokens": 101})).status == 429
        go.set()
        replies = [await call for call in calls]
        assert [reply.status for reply in replies] == [200] * 9
        for measure, left in (("requests", range(1, 10)), ("tokens", range(100, 1000, 100))):
            name = f"x-ratelimit-remaining-{measure}"
            assert sorted(int(reply.headers[name]) for reply in replies) == list(left)
        last = await door.post(CHAT, ASK | {"max_tokens": 100})
        assert (last.status, last.headers["x-ratelimit-remaining-tokens"]) == (200, "0")
        await door.idle()
