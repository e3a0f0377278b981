"""Settlements outlive a store that is away, gateways that are killed, and both: all is charged and booked, once."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.journal.journal import Journal
from gateway.admission.redis.store import RedisStore
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.errors import TooMany
from gateway.identity.principal import Principal
from tests.deadlines import DEADLINE_S, STORE_TIMEOUT_S
from tests.journals import booked, call, gateway_with, lines, lines_and_files, pending, until, used
from tests.limiting import Remembering, limit, reservation
from tests.processes import Processes, run
from tests.store_proxy import proxy_before
from tests.store_server import StoreServer

CLOCK = SystemClock()
DAILY = limit("day", 10**9)
CALLS = limit("month", 10**9, rule="calls", measure="requests")


@asynccontextmanager
async def connected(url: str, directory: Path, observer: Remembering) -> AsyncIterator[tuple[RedisStore, Journal]]:
    journal = Journal(directory, CLOCK, dropped=observer.settlement_dropped)
    store = RedisStore(
        url, CLOCK, timeout_s=STORE_TIMEOUT_S, lease_s=30, retention_s=86_400, observer=observer, backlog=journal
    )
    store.start()
    try:
        yield store, journal
    finally:
        await store.close()


async def test_what_a_store_that_is_away_does_not_take_is_on_disk_and_comes_before_it_is_up_again(
    lasting_store: StoreServer, tmp_path: Path
) -> None:
    observer = Remembering()
    async with connected(lasting_store.url, tmp_path, observer) as (store, journal):
        calls = [reservation(f"call-{i}", (DAILY, 100), (limit("lease", 9999), 1)) for i in range(700)]
        await asyncio.gather(*[store.reserve(call) for call in calls])
        lasting_store.stop()
        for call in calls:
            store.settle(call.settlement(Usage(1, 2)))
        await until(lambda: not store.up and lines(tmp_path) == 700)
        assert len(journal) == store.pending == 700
        lasting_store.start()
        await until(lambda: store.up)
        assert store.pending == 0
        with lasting_store.client() as client:
            assert used(client, DAILY.key) == 2100
            assert booked(client) == {"calls": 700, "prompt_tokens": 700, "completion_tokens": 1400}
        assert observer.dropped == 0
    assert lines_and_files(tmp_path) == (0, 0)


async def test_closing_before_a_store_that_is_away_leaves_all_to_the_next_process(
    lasting_store: StoreServer, tmp_path: Path
) -> None:
    observer = Remembering()
    async with connected(lasting_store.url, tmp_path, observer) as (store, _):
        call = reservation("call", (DAILY, 100))
        await store.reserve(call)
        lasting_store.freeze()
        store.settle(call.settlement(Usage(1, 2)))
    assert lines(tmp_path) == 1
    lasting_store.thaw()
    async with connected(lasting_store.url, tmp_path, observer) as (store, _):
        await until(lambda: not store.pending)
    with lasting_store.client() as client:
        assert used(client, DAILY.key) == 3
    assert observer.dropped == 0
    assert lines_and_files(tmp_path) == (0, 0)


async def test_a_replay_that_is_broken_off_again_and_again_counts_every_call_once(
    lasting_store: StoreServer, tmp_path: Path
) -> None:
    observer = Remembering()
    reserved = [reservation(f"reserved-{i}", (DAILY, 100), (CALLS, 1)) for i in range(600)]
    unseen = [reservation(f"unseen-{i}", (DAILY, 100), (CALLS, 1)) for i in range(600)]
    async with proxy_before(lasting_store.port) as proxy, connected(proxy.url, tmp_path, observer) as (store, journal):
        await asyncio.gather(*[store.reserve(call) for call in reserved])
        lasting_store.stop()
        for seen, other in zip(reserved, unseen, strict=True):
            store.settle(seen.settlement(Usage(1, 2)))
            store.settle(other.settlement(Usage(3, 4), uncertain=True))
        await until(lambda: not store.up and lines(tmp_path) == 1200)
        lasting_store.start()
        for left in (1000, 700, 400, 100):
            for _ in range(5):
                proxy.lose("hang up")
            await until(lambda left=left: len(journal) <= left)  # type: ignore[misc] # bound in this turn
        await until(lambda: store.up and not store.pending)
    with lasting_store.client() as client:
        assert used(client, DAILY.key) == 600 * 3 + 600 * 7
        assert used(client, CALLS.key) == 1200
        assert booked(client) == {"calls": 1200, "prompt_tokens": 600 * 4, "completion_tokens": 600 * 6}


async def test_what_nobody_saw_end_is_reserved_once_and_settled_where_its_settlement_comes_after_all(
    lasting_store: StoreServer, tmp_path: Path
) -> None:
    asked = [reservation(call_id, (DAILY, 100), (CALLS, 1)) for call_id in ("unknown", "taken", "ended")]
    async with connected(lasting_store.url, tmp_path, Remembering()) as (store, _):
        await store.reserve(asked[1])
        store.settle(asked[2].settlement(Usage(1, 2), uncertain=True))
        for call in [*asked, *asked]:
            store.settle(call.as_reserved())
        await until(lambda: not store.pending)
        with lasting_store.client() as client:
            assert (used(client, DAILY.key), used(client, CALLS.key)) == (203, 3)
            assert booked(client)["calls"] == 1
            for call in asked[:2]:
                store.settle(call.settlement(Usage(3, 4), uncertain=True))
                store.settle(call.as_reserved())
            await until(lambda: not store.pending)
            assert (used(client, DAILY.key), used(client, CALLS.key)) == (17, 3)
            assert booked(client)["calls"] == 3
            assert [key for key in client.scan_iter("*") if client.ttl(key) < 0] == []


PRINCIPAL = Principal("acme", "key-1")
CALL = Call(
    "chat", "m", b"", stream=False, include_usage=False, continuous_usage=False, input_tokens=10, output_tokens=0
)
RULES = (
    config.Rule(name="tokens", per=("key",), tokens=100, window="month"),
    config.Rule(name="calls", per=("key",), requests=6, window="month"),
    config.Rule(
        name="credits", per=("key",), tokens=10**6, window="month", weights=config.Weights(input=0.5, output=4)
    ),
    config.Rule(name="shadow", per=("key",), requests=2, window="month", shadow=True),
    config.Rule(name="at-once", per=("key",), concurrent=40),
)


BY_RULE = (RULES[0], RULES[1].model_copy(update={"on_store_failure": "local"}), *RULES[2:])


@pytest.mark.parametrize(
    ("mode", "rules"), [("local", RULES), ("allow", RULES), ("allow", BY_RULE)], ids=["local", "allow", "by rule"]
)
@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_calls_that_were_admitted_without_the_store_are_charged_and_booked_when_it_is_back(
    lasting_store: StoreServer,
    tmp_path: Path,
    mode: Literal["local", "allow"],
    rules: tuple[config.Rule, ...],
    how: Literal["stopped", "frozen"],
) -> None:
    observer = Remembering()
    limits = config.Limits(
        store=lasting_store.url, journal=str(tmp_path), on_store_failure=mode, plans={"standard": rules}
    )
    async with connected(lasting_store.url, tmp_path, observer) as (store, journal):
        admission = Admission(limits, store, CLOCK, observer=observer)
        permits = []

        async def admit(call_id: str) -> None:
            permits.append(
                await admission.admit(PRINCIPAL, CALL, model="m", pool="p", default_output_tokens=0, call_id=call_id)
            )

        await admit("before")
        getattr(lasting_store, {"stopped": "stop", "frozen": "freeze"}[how])()
        for number in range(6):
            await admit(f"away-{number}")
        if rules is BY_RULE or mode == "local":
            for number in range(200):
                with pytest.raises(TooMany):
                    await admit(f"refused-{number}")
        for permit in permits[:-1]:
            permit.settle(Usage(3, 5))
        # Frozen, the store may have taken the first call, which waited for it. What was refused waits for nobody.
        await until(lambda: lines(tmp_path) == len(journal) == 6)
        getattr(lasting_store, {"stopped": "start", "frozen": "thaw"}[how])()
        await until(lambda: store.up)
        permits[-1].settle(Usage(3, 5))  # began without the store, and ends with it
        await until(lambda: not store.pending)
    ran = len(permits)
    with lasting_store.client() as client:
        keys = {key.split(b":")[2]: key.decode() for key in client.scan_iter("gw:*:key:*")}
        assert used(client, keys[b"tokens"]) == 8 * ran
        assert used(client, keys[b"calls"]) == ran
        assert used(client, keys[b"credits"]) == 22 * ran  # 3 * 0.5 + 5 * 4, each call rounded up
        figures = booked(client)
        assert (figures["calls"], figures["prompt_tokens"], figures["completion_tokens"]) == (ran, 3 * ran, 5 * ran)
        assert [key for key in client.scan_iter("*") if client.ttl(key) < 0] == []
    assert observer.dropped == 0


@pytest.mark.parametrize("mode", ["local", "allow"])
async def test_gateways_killed_while_the_store_is_down_and_while_they_replay_charge_what_the_engine_generated(
    processes: Processes, lasting_store: StoreServer, tmp_path: Path, mode: str
) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    processes.token()
    engine = await processes.engine("tiny")
    first = await gateway_with(processes, engine, lasting_store.url, journal, mode=mode)
    await asyncio.gather(*[call(processes, first, number) for number in range(50)])
    with lasting_store.client() as client:
        await until(lambda: booked(client)["calls"] == 50)
    lasting_store.stop()
    for _ in range(14):
        await asyncio.gather(*[call(processes, first, number) for number in range(50)])
    await until(lambda: lines(journal) == 700)
    first.send(signal.SIGKILL)
    assert await first.ended() == -signal.SIGKILL
    lasting_store.start()

    async with proxy_before(lasting_store.port) as proxy:
        proxy.delay_s = 0.3
        with lasting_store.client() as client:
            before = booked(client)["calls"]
            second = await gateway_with(processes, engine, proxy.url, journal, mode=mode)
            await until(lambda: before < booked(client)["calls"])
            assert await pending(processes, second) > 0
            second.send(signal.SIGKILL)
            await second.ended()
            assert booked(client)["calls"] < 750

    third = await gateway_with(processes, engine, lasting_store.url, journal, mode=mode)
    async with asyncio.timeout(DEADLINE_S):
        while await pending(processes, third):
            await asyncio.sleep(0.02)
    await call(processes, third, 0)
    third.send(signal.SIGTERM)
    assert await third.ended() == 0
    assert lines_and_files(journal) == (0, 0)
    samples = await engine.metrics(processes.session)
    prompt, completion = samples.total("vllm:prompt_tokens_total"), samples.total("vllm:generation_tokens_total")
    with lasting_store.client() as client:
        assert booked(client) == {"calls": 751, "prompt_tokens": prompt, "completion_tokens": completion}
        (quota,) = client.scan_iter("gw:*:quota:*")
        assert used(client, quota.decode()) == prompt + completion


async def test_a_journal_that_cannot_be_kept_is_a_mistake_of_the_config(processes: Processes, tmp_path: Path) -> None:
    processes.token()
    path = processes.config(
        models={"tiny": {"pool": "main"}},
        pools={"main": {"replicas": ["http://127.0.0.1:1"]}},
        limits={"store": "redis://127.0.0.1:1", "journal": str(tmp_path / "nowhere")},
    )
    ended = await run("serve", "--config", str(path))
    assert ended.code == 2
    assert ended.stderr.splitlines()[-1] == (
        f"limits.journal: cannot keep a journal in {tmp_path}/nowhere: No such file or directory. "
        "Name a directory that exists, has room, and may be written to by this process."
    )
