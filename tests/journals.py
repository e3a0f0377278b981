"""What tests of the journal with real stores and gateways share: what is on disk, in the store, and charged."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.admission.journal.journal import Journal
from gateway.admission.reservation import Settlement
from gateway.calls.usage import Usage
from tests.deadlines import DEADLINE_S, STORE_TIMEOUT_S
from tests.doors import CHAT
from tests.limiting import Remembering, SetClock, limit, reservation
from tests.processes import Processes, Running
from tests.store_server import StoreServer, running_server

CLOCK = SetClock()
QUOTA = {"name": "quota", "per": ["tenant"], "tokens": 10**9, "window": "month"}


@pytest.fixture
def lasting_store() -> Iterator[StoreServer]:
    """A server that has all its data when it is started again after it was killed."""
    with running_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def used(client: redis.Redis, key: str) -> int:
    """Return what is used of a quota."""
    value = client.get(key)
    assert isinstance(value, bytes | None)
    return int(value.split()[0]) if value else 0


def booked(client: redis.Redis) -> Counter[str]:
    """Return the sum of all days, tenants, keys and models of each counter."""
    figures: Counter[str] = Counter()
    for day in client.scan_iter("gw:*:ledger:*"):
        for place, figure in client.hgetall(day).items():
            if place != b"tenant":
                assert isinstance(place, bytes)
                figures[place.split()[0].decode()] += int(figure)
    return figures


def lines(directory: Path) -> int:
    """Return how many settlements are on disk, notes not counted."""
    return lines_and_files(directory)[0]


def notes(directory: Path) -> int:
    """Return how many notes of calls that were admitted without the store are on disk."""
    return sum(path.read_bytes().count(b'\n{"admitted"') for path in directory.iterdir())


def lines_and_files(directory: Path) -> tuple[int, int]:
    counts = [path.read_bytes().count(b'\n{"call"') for path in directory.iterdir()]
    return sum(counts), len(counts)


async def gateway_with(
    processes: Processes, engine: Running, store_url: str, journal: Path, *, mode: str = "allow"
) -> Running:
    return await processes.serve(
        processes.config(
            models={"tiny": {"pool": "main"}},
            pools={"main": {"replicas": [engine.url]}},
            limits={
                "store": store_url,
                "store_timeout": f"{STORE_TIMEOUT_S}s",
                "journal": str(journal),
                "on_store_failure": mode,
                "plans": {"standard": [QUOTA]},
            },
        )
    )


async def call(processes: Processes, gateway: Running, number: int) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": number % 5 + 1,
    }
    reply = await processes.post(gateway, CHAT, body, token=processes.token())
    assert reply.status == 200, reply


async def pending(processes: Processes, gateway: Running) -> float:
    return (await gateway.metrics(processes.session)).total("gateway_journal_pending")


def settlement(call_id: str, *, tokens: int = 1) -> Settlement:
    asked = reservation(call_id, (limit("day", 100), 9), (limit("lease", 3), 1))
    return asked.settlement(Usage(tokens, 2), uncertain=True)


def opened(directory: Path, observer: Remembering | None = None) -> Journal:
    return Journal(directory, CLOCK, dropped=(observer or Remembering()).settlement_dropped)


def take(journal: Journal, at_most: int = 250) -> list[str]:
    """Take what waits longest; return its calls."""
    calls = [one.call_id for one in journal.oldest(at_most)]
    assert calls == [one.call_id for one in journal.oldest(at_most)]
    if calls:
        journal.taken()
    return calls


def take_all(journal: Journal, at_most: int = 250) -> list[str]:
    calls = []
    while batch := take(journal, at_most):
        calls += batch
    assert len(journal) == 0
    return calls


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())
