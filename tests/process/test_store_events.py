"""Events in the store's streams: one for each booking, whatever is sent again; read by the consumer of the docs."""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import config
from gateway.admission.digest import digest
from gateway.admission.journal.journal import Journal
from gateway.admission.ledger.account import Account
from gateway.admission.redis.store import RedisStore
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S, STORE_TIMEOUT_S
from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine
from tests.limiting import ACCOUNT, RETENTION_S, TAG, Remembering, limit, reservation
from tests.processes import ROOT
from tests.store_proxy import proxy_before
from tests.store_server import (  # noqa: F401 fixtures
    StoreServer,
    own_store_server,
    shared_store_server,
    store_server,
)

DAILY = limit("day", 10**6)
AT_ONCE = limit("lease", 500)
SHARED = config.Events()
USED = Usage(7, 5, 4, 3)


@asynccontextmanager
async def connected(
    url: str, events: config.Events | None = SHARED, journal: Path | None = None
) -> AsyncIterator[RedisStore]:
    observer = Remembering()
    store = RedisStore(
        url,
        SystemClock(),
        timeout_s=STORE_TIMEOUT_S,
        lease_s=30,
        retention_s=RETENTION_S,
        observer=observer,
        events=events,
        backlog=None if journal is None else Journal(journal, SystemClock(), dropped=observer.settlement_dropped),
    )
    store.start()
    try:
        yield store
    finally:
        await store.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def told(server: StoreServer, stream: str = "gw:events") -> list[dict[str, str]]:
    with server.client(decode_responses=True) as client:
        return [fields for _, fields in client.xrange(stream)]


async def settle(store: RedisStore, call_id: str, usage: Usage | None, account: Account = ACCOUNT) -> None:
    call = reservation(call_id, (DAILY, 100), (AT_ONCE, 1), account=account)
    await store.reserve(call)
    store.settle(call.settlement(usage))
    await until(lambda: not store.pending)


async def test_a_settled_call_is_told_field_by_field(store_server: StoreServer) -> None:  # noqa: F811
    odd = Account("a b{c}/ü%41", "ключ 1", "org/m:7b", digest("a b{c}/ü%41"))
    async with connected(store_server.url) as store:
        with store_server.client() as client:
            seconds, _ = client.time()
        await settle(store, "call-1", USED, odd)
        await settle(store, "call-2", Usage(2, 1, source="estimated"))
        await settle(store, "call-3", Usage(0, 0))
        await settle(store, "nobody took it", None)
    first, second, third = told(store_server)
    assert abs(int(first.pop("at_us")) / 1_000_000 - seconds) < DEADLINE_S
    assert first == {
        "call": "call-1",
        "event": "settled",
        "tenant": odd.tenant,
        "key": odd.key,
        "model": odd.model,
        "prompt_tokens": "7",
        "completion_tokens": "5",
        "cached_tokens": "4",
        "reasoning_tokens": "3",
        "source": "engine",
    }
    assert (second["call"], second["source"], second["prompt_tokens"]) == ("call-2", "estimated", "2")
    assert (third["call"], third["source"], third["completion_tokens"]) == ("call-3", "engine", "0")


async def test_a_refused_call_is_told_once_however_often_it_is_asked_for(store_server: StoreServer) -> None:  # noqa: F811
    refused = reservation("refused", (limit("day", 10), 11))
    async with connected(store_server.url) as store:
        for _ in range(3):
            assert not (await store.reserve(refused)).admitted
    (event,) = told(store_server)
    assert (event["call"], event["event"], event["prompt_tokens"]) == ("refused", "refused", "0")


async def test_without_events_nothing_is_told(store_server: StoreServer) -> None:  # noqa: F811
    async with connected(store_server.url, None) as store:
        await settle(store, "call-1", USED)
    with store_server.client() as client:
        assert list(client.scan_iter("*events*")) == []


async def test_what_is_sent_again_is_told_once(store_server: StoreServer) -> None:  # noqa: F811
    async with proxy_before(store_server.port) as proxy, connected(proxy.url) as store:
        calls = [reservation(f"call-{i}", (DAILY, 100), (AT_ONCE, 1)) for i in range(60)]
        for number, call in enumerate(calls):
            await until(lambda: store.up)
            await store.reserve(call)
            if number % 3 == 0:
                proxy.lose("hang up")
            for _ in range(1 + number % 2):
                store.settle(call.settlement(USED, uncertain=number % 5 == 0))
            await until(lambda: not store.pending)
    assert Counter(event["call"] for event in told(store_server)) == {call.call_id: 1 for call in calls}


async def test_what_a_journal_kept_is_told_once_with_the_time_at_which_it_ended(
    own_store_server: StoreServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    own_store_server.stop()
    ended_us = round(SystemClock().now() * 1_000_000)
    async with connected(own_store_server.url, journal=tmp_path) as store:
        await until(lambda: not store.up)
        for number in [*range(20), *range(10)]:
            unseen = reservation(f"call-{number}", (DAILY, 100), (AT_ONCE, 1))
            store.settle(unseen.settlement(USED, uncertain=True))
    own_store_server.start()
    async with connected(own_store_server.url, journal=tmp_path) as store:
        await until(lambda: store.up and not store.pending)
    events = told(own_store_server)
    assert sorted(event["call"] for event in events) == sorted(f"call-{number}" for number in range(20))
    assert all(0 <= int(event["at_us"]) - ended_us < DEADLINE_S * 1_000_000 for event in events)


async def test_a_stream_keeps_about_as_many_as_it_should_and_ends_with_the_ledger(store_server: StoreServer) -> None:  # noqa: F811
    async with connected(store_server.url, config.Events(max_length=1000)) as store:
        calls = [reservation(f"call-{i}", (DAILY, 1)) for i in range(1500)]
        for start in range(0, len(calls), 100):  # as many as a busy machine can do within the store's timeout
            await asyncio.gather(*[store.reserve(call) for call in calls[start : start + 100]])
        for call in calls:
            store.settle(call.settlement(USED))
        await until(lambda: not store.pending)
    with store_server.client() as client:
        assert 1000 <= client.xlen("gw:events") < 1200
        assert 0 < client.ttl("gw:events") <= RETENTION_S


async def test_each_tenant_may_have_a_stream_that_lives_with_its_other_keys(store_server: StoreServer) -> None:  # noqa: F811
    other = Account("other", "key-1", "m", digest("other"))
    async with connected(store_server.url, config.Events(stream="tenant")) as store:
        await settle(store, "call-1", USED)
        await settle(store, "call-2", USED, other)
    assert [event["call"] for event in told(store_server, f"gw:{{{TAG}}}:events")] == ["call-1"]
    assert [event["call"] for event in told(store_server, f"gw:{{{other.tag}}}:events")] == ["call-2"]


async def test_what_is_not_ours_under_a_streams_key_is_taken_away(store_server: StoreServer) -> None:  # noqa: F811
    with store_server.client() as client:
        client.set("gw:events", "x")
    async with connected(store_server.url) as store:
        await settle(store, "call-1", USED)
    assert [event["call"] for event in told(store_server)] == ["call-1"]


async def test_a_user_that_may_not_write_events_is_not_let_in(
    own_store_server: StoreServer,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    with own_store_server.client() as client:
        client.execute_command("ACL", "SETUSER", "gateway", "on", ">pw", "~gw:*", "+@all", "-xadd")
    url = f"redis://gateway:pw@127.0.0.1:{own_store_server.port}/0"
    async with connected(url) as store:
        await until(lambda: not store.up)
    assert "xadd" in caplog.text
    async with connected(url, None) as store:
        await settle(store, "call-1", USED)


def example() -> str:
    """Return the consumer that docs/usage.md shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "usage.md").read_text(), re.DOTALL)
    (consumer,) = [block for block in blocks if "xreadgroup" in block]
    return str(consumer)


async def test_the_consumer_of_the_docs_bills_each_call_once_though_it_dies_before_it_acknowledges(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    store_server: StoreServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    limits = {"store": store_server.url, "store_timeout": "5s", "events": {"max_length": 1000}}
    door = await open_door(scripted_engine.url, limits=limits)
    ask: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    replies = [await door.post(CHAT, ask) for _ in range(5)]
    await until(lambda: len(told(store_server)) == 5)
    with store_server.client() as client:
        # Another consumer of the same name read two of them, and died.
        client.xgroup_create("gw:events", "billing", id="0", mkstream=True)
        client.xreadgroup("billing", "worker-1", {"gw:events": ">"}, count=2)
    script = tmp_path / "consumer.py"
    script.write_text(example())
    billed = await asyncio.to_thread(_run, script, store_server.url)
    assert sorted(event["call"] for event in billed) == sorted(reply.headers["INFERENCE-ID"] for reply in replies)
    used = [reply.json()["usage"]["completion_tokens"] for reply in replies]
    assert [int(event["completion_tokens"]) for event in billed] == used
    with store_server.client() as client:
        assert client.xpending("gw:events", "billing")["pending"] == 0


def _run(script: Path, url: str) -> list[dict[str, str]]:
    ended = subprocess.run(
        [sys.executable, str(script), url], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]
