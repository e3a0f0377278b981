"""Limits over several gateway processes, of which one has a wrong clock, or which are killed again and again."""

import asyncio
import os
import signal
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT
from tests.engines import Connection, Received, ScriptedEngine, never, plain_answer, script
from tests.processes import Processes, Running, until
from tests.store_server import StoreServer
from tests.transcripts import answer, chat_role, chunked, head, http

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
KILLS, KILLS_AMID, KILLED_AMID = 50, 20, 4
# A gateway may stand still between two renewals and has its slots all the same.
LEASE_S = 2.5
HOUR = {"per": ["key"], "window": "1h"}


async def gateways(
    processes: Processes, store: StoreServer, engine: ScriptedEngine, *rules: dict[str, Any], modules: tuple[str, ...]
) -> list[Running]:
    processes.token()
    configs = [
        processes.config(
            models={"tiny": {"pool": "tiny"}},
            pools={"tiny": {"replicas": [engine.url]}},
            limits={
                "store": store.url,
                "store_timeout": "5s",
                "lease": f"{LEASE_S * 1000:.0f}ms",
                "plans": {"standard": list(rules)},
            },
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


class Load:
    """Calls and streams that go on whatever becomes of their gateways; a stream ends when its gateway is killed."""

    def __init__(self, processes: Processes, token: str) -> None:
        self.answered = 0
        self.began: Counter[str] = Counter()  # streams of each gateway
        self._session = processes.session
        self._headers = {"Authorization": f"Bearer {token}"}
        self._running: list[asyncio.Task[None]] = []

    def start(self, running: Running, *, stream: bool) -> None:
        self._running.append(asyncio.create_task(self._calls(running, stream=stream)))

    async def stop(self) -> None:
        """End what goes on. All of it did until now."""
        for one in self._running:
            one.cancel()
        await asyncio.wait(self._running)
        assert [one for one in self._running if not one.cancelled()] == []

    async def _calls(self, running: Running, *, stream: bool) -> None:
        while True:
            try:
                await self._call(running.url, ASK | {"stream": stream})
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)

    async def goes_on(self, running: Running) -> None:
        """Wait until two streams more began at this gateway, and more calls were answered."""
        streams, answered = self.began[running.url] + 2, self.answered + 5

        async def more() -> bool:
            for one in self._running:
                if one.done():
                    one.result()  # says why
            return self.began[running.url] >= streams and self.answered >= answered

        await until(more)

    async def _call(self, url: str, body: dict[str, Any]) -> None:
        async with self._session.post(url + CHAT, json=body, headers=self._headers) as response:
            assert response.status == 200, await response.text()
            self.answered += 1
            async for _ in response.content.iter_any():
                self.began[url] += body["stream"]


async def streams_go_on(request: Received, connection: Connection) -> None:
    endless = script(head(), chunked(chat_role()), never)
    await (endless if request.json().get("stream") else plain_answer)(request, connection)


def child_of(running: Running) -> int:
    return int(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text())


async def test_gateways_killed_fifty_times_under_load_leave_no_key_for_ever_and_no_slot_taken(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine
) -> None:
    rules = [
        {"name": "requests", "per": ["tenant"], "requests": 10**6, "window": "month"},
        {"name": "tokens", "per": ["tenant"], "tokens": 10**9, "window": "month"},
        # All that gateways hold as they are killed, some ten times a second, is held until their leases end.
        {"name": "slots", "per": ["key"], "concurrent": 1000},
    ]
    token = processes.token()
    both = await gateways(processes, store_server, scripted_engine, *rules, modules=("tests.again",) * 2)
    scripted_engine.default = streams_go_on
    load = Load(processes, token)
    for one in both:
        for number in range(4):
            load.start(one, stream=number < 2)

    async def killed(running: Running) -> None:
        """Kill it while it has two streams and has answered calls, again and again."""
        for _ in range(KILLS // len(both)):
            await load.goes_on(running)
            os.kill(child_of(running), signal.SIGKILL)
            assert [key for key in client.scan_iter("*") if client.ttl(key) == -1] == []

    with store_server.client() as client:
        await asyncio.gather(*map(killed, both))
        await load.stop()

        async def nothing_is_held() -> bool:
            return not list(client.scan_iter("gw:*slots*"))

        await until(nothing_is_held)
    for one in both:
        await one.answers(processes.session, "/readyz")
    replies = await asyncio.gather(*[processes.post(one, CHAT, ASK, token=token) for one in both])
    left = min(int(reply.headers["x-ratelimit-remaining-requests"]) for reply in replies)
    # Each that reached the engine was counted, and hardly more: a kill may come between the two.
    asked = len(scripted_engine.requests)
    assert asked <= 10**6 - left <= asked + KILLS * 4


async def test_gateways_killed_twenty_times_amid_a_keys_two_streams_give_it_both_again_within_their_lease(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine
) -> None:
    slots = {"name": "slots", "per": ["key"], "concurrent": 2}
    modules = ("tests.again",) * KILLED_AMID
    all_of_them = await gateways(processes, store_server, scripted_engine, slots, modules=modules)
    scripted_engine.default = streams_go_on
    clock, took_s = asyncio.get_running_loop(), list[float]()

    async def two_at_once(running: Running, token: str) -> list[aiohttp.ClientResponse]:
        """Return two streams that run on."""
        streams: list[aiohttp.ClientResponse] = []
        while len(streams) < 2:
            try:
                stream = await processes.session.post(
                    running.url + CHAT, json=ASK | {"stream": True}, headers={"Authorization": f"Bearer {token}"}
                )
            except aiohttp.ClientError:  # it is not there yet
                await asyncio.sleep(0.05)
                continue
            assert stream.status in (200, 429)
            if stream.status == 200:
                streams.append(stream)
                await stream.content.readuntil(b"\n\n")
            else:
                stream.release()
                await asyncio.sleep(0.05)
        return streams

    async def killed(running: Running, key: str) -> list[aiohttp.ClientResponse]:
        token = processes.token(key=key)
        streams = await two_at_once(running, token)
        for _ in range(KILLS_AMID // KILLED_AMID):
            assert (await processes.post(running, CHAT, ASK, token=token)).status == 429
            os.kill(child_of(running), signal.SIGKILL)
            at_s = clock.time()
            for stream in streams:
                stream.close()
            streams = await asyncio.wait_for(two_at_once(running, token), DEADLINE_S)
            took_s.append(clock.time() - at_s)
        return streams

    left = await asyncio.gather(*[killed(one, f"key-{number}") for number, one in enumerate(all_of_them)])
    assert statistics.median(took_s) < LEASE_S + 2
    assert max(took_s) < LEASE_S + 4  # for one of them the machine may have stood still
    with store_server.client() as client:
        assert [client.zcard(key) for key in client.scan_iter("gw:*slots*")] == [2] * KILLED_AMID
    for stream in (one for streams in left for one in streams):
        stream.close()
