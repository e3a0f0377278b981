"""Gateways that are killed with calls under way that they had admitted without the store: charged as reserved, once."""

import asyncio
import json
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Literal

import aiohttp
import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT
from tests.journals import booked, call, gateway_with, lines, notes, pending, until, used
from tests.processes import Processes, Running
from tests.store_server import StoreServer

pytestmark = pytest.mark.compiled


async def read_some(
    processes: Processes, gateway: Running, *, max_tokens: int, stream: bool, reading: asyncio.Event
) -> None:
    """Send a call, and read until its gateway is gone."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": max_tokens}
    headers = {"Authorization": f"Bearer {processes.token()}"}
    with suppress(aiohttp.ClientError):
        async with processes.session.post(
            gateway.url + CHAT, json=body | {"stream": stream}, headers=headers
        ) as response:
            async for _ in response.content.iter_any():
                reading.set()


def generated(account: Path) -> Counter[str]:
    """Return how many tokens an engine read and generated, as its account says."""
    figures: Counter[str] = Counter()
    for line in account.read_bytes().splitlines():
        _, step, _, *rest = json.loads(line)
        figures["prompt"] += rest[1] if step == "began" else 0
        figures["completion"] += step == "token"
        figures["cut"] += step == "cut"
    return figures


@pytest.mark.parametrize("mode", ["local", "allow"])
@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_calls_under_way_without_the_store_are_charged_as_reserved_when_their_gateway_is_killed(
    processes: Processes, lasting_store: StoreServer, tmp_path: Path, mode: str, how: Literal["stopped", "frozen"]
) -> None:
    journal, account = tmp_path / "journal", tmp_path / "account"
    journal.mkdir()
    processes.token()
    engine = await processes.engine("tiny", tokens_per_second=50, account=account)
    gateway = await gateway_with(processes, engine, lasting_store.url, journal, mode=mode)
    getattr(lasting_store, {"stopped": "stop", "frozen": "freeze"}[how])()
    await asyncio.gather(*[call(processes, gateway, number) for number in range(10)])
    whole, streams = generated(account), [asyncio.Event() for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for reading in streams:
            group.create_task(read_some(processes, gateway, max_tokens=500, stream=True, reading=reading))
        for _ in range(4):
            group.create_task(read_some(processes, gateway, max_tokens=500, stream=False, reading=asyncio.Event()))
        await asyncio.gather(*[reading.wait() for reading in streams])
        await until(lambda: notes(journal) == 18 and lines(journal) == 10)
        gateway.send(signal.SIGKILL)
        assert await gateway.ended() == -signal.SIGKILL
    await until(lambda: generated(account)["cut"] == 8)
    getattr(lasting_store, {"stopped": "start", "frozen": "thaw"}[how])()
    for _ in range(2):  # the second finds nothing more
        gateway = await gateway_with(processes, engine, lasting_store.url, journal, mode=mode)
        async with asyncio.timeout(DEADLINE_S):
            while await pending(processes, gateway):
                await asyncio.sleep(0.02)
        gateway.send(signal.SIGTERM)
        assert await gateway.ended() == 0
        all_of_it = generated(account)
        with lasting_store.client() as client:
            assert booked(client) == {
                "calls": 10,
                "prompt_tokens": whole["prompt"],
                "completion_tokens": whole["completion"],
            }
            (quota,) = client.scan_iter("gw:*:quota:*")
            charged = used(client, quota.decode()) - whole["prompt"] - whole["completion"]
            left = all_of_it["prompt"] + all_of_it["completion"] - whole["prompt"] - whole["completion"]
            assert max(left, 8 * 500) <= charged < 8 * 600
        assert list(journal.iterdir()) == []
