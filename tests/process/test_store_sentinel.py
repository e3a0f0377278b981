"""A master that sentinels name: found, left when another is named, and no call lost or booked twice by that."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import hiredis
import pytest

from gateway.admission.redis.command import pack
from gateway.admission.redis.sentinels import Sentinels
from gateway.admission.redis.store import RedisStore
from gateway.admission.store import StoreUnavailable
from gateway.calls.usage import Usage
from gateway.config import store_url
from tests.deadlines import PROMPTLY_S
from tests.journals import files, lines, opened
from tests.limiting import TAG, Remembering, limit, reservation, until_asked
from tests.load import CLOCK, gateway_before, until
from tests.store_cluster import ask, wait_until
from tests.store_sentinel import StoreSentinels, follows
from tests.store_server import StoreServer, running_server

DAILY = limit("day", 10**9)
CALLS = limit("month", 10**9, rule="calls", measure="requests")
AT_ONCE = limit("lease", 1000)
SECRET = "s3cret/%@:# ü"


class Naming:
    """A sentinel that names whom the test says."""

    def __init__(self) -> None:
        self.port = 0
        self.epoch = 1
        self.names: StoreServer | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/limits"

    def name(self, server: StoreServer) -> None:
        self.names, self.epoch = server, self.epoch + 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65_536):
            parser.feed(data)
            for command in iter(parser.gets, False):
                writer.write(self._reply(command))
        writer.close()

    def _reply(self, command: list[bytes]) -> bytes:
        if self.names is None:
            return b"*-1\r\n" if command[1] != b"MASTER" else b"-ERR No such master with that name\r\n"
        words: list[str | int] = (
            ["config-epoch", self.epoch] if command[1] == b"MASTER" else ["127.0.0.1", self.names.port]
        )
        return pack(words)


@asynccontextmanager
async def naming(server: StoreServer | None) -> AsyncIterator[Naming]:
    sentinel = Naming()
    sentinel.names = server
    async with await asyncio.start_server(sentinel.serve, "127.0.0.1", 0) as listening:
        sentinel.port = listening.sockets[0].getsockname()[1]
        yield sentinel


@asynccontextmanager
async def connected(url: str, *, there: bool = True, **options: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        url, CLOCK, **{"timeout_s": 5, "lease_s": 30, "retention_s": 86_400, "observer": Remembering(), **options}
    )
    store.start()
    try:
        if there:
            await until_asked(lambda: store.renew([reservation("nobody")]))
        yield store
    finally:
        await store.close()


def used(server: StoreServer, *keys: str) -> list[int]:
    return [int(ask(server, "GET", key).split()[0]) for key in keys]


def booked(server: StoreServer) -> dict[str, int]:
    with server.client() as client:
        (day,) = client.scan_iter(f"gw:{{{TAG}}}:ledger:*")
        return {
            field.split()[0].decode(): int(figure)
            for field, figure in client.hgetall(day).items()
            if field != b"tenant"
        }


async def test_calls_whose_last_writes_another_master_never_saw_are_charged_and_booked_once(
    store_server: StoreServer,
) -> None:
    with running_server() as other:
        async with naming(store_server) as sentinel, connected(sentinel.url) as store:
            calls = [reservation(f"call-{i}", (DAILY, 100), (CALLS, 1), (AT_ONCE, 1)) for i in range(600)]
            await asyncio.gather(*[store.reserve(call) for call in calls])
            for call in calls[:300]:
                store.settle(call.settlement(Usage(1, 2), charging=True))
            await until(lambda: not store.pending)
            assert booked(store_server) == {"calls": 300, "prompt_tokens": 300, "completion_tokens": 600}
            sentinel.name(other)
            await until(lambda: bool(other.client().script_exists(store._scripts._settle.sha)[0]))
            for call in calls[300:500]:
                store.settle(call.settlement(Usage(1, 2), charging=True))
            for call in calls[500:]:
                store.settle(call.settlement(None, charging=True))
            await until(lambda: not store.pending)
            assert booked(other) == {"calls": 500, "prompt_tokens": 500, "completion_tokens": 1000}
            assert used(other, DAILY.key, CALLS.key) == [1500, 500]
            # Back again: it has had the first 300, and hears of the others what the second one took.
            sentinel.name(store_server)
            await until(lambda: booked(store_server)["calls"] == 500)
            await store.renew([calls[0]])
            assert booked(store_server) == {"calls": 500, "prompt_tokens": 500, "completion_tokens": 1000}
            assert used(store_server, DAILY.key, CALLS.key) == [1500, 500]
            with store_server.client() as client:
                assert client.zcard(AT_ONCE.key) == 0


@pytest.fixture
def copy(store_server: StoreServer) -> Iterator[StoreServer]:
    """A replica of the server."""
    ask(store_server, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
    with running_server() as replica:
        ask(replica, "REPLICAOF", "127.0.0.1", store_server.port)
        wait_until(lambda: follows(replica))
        yield replica


async def settled(store: RedisStore, count: int, *, name: str = "call") -> None:
    for call in [reservation(f"{name}-{i}", (DAILY, 100), (AT_ONCE, 1)) for i in range(count)]:
        await store.reserve(call)
        store.settle(call.settlement(Usage(1, 2), charging=True))
    await until(lambda: not store.pending)


async def test_what_a_master_took_of_a_gateway_that_ends_and_no_replica_has_is_left_to_the_next_one(
    store_server: StoreServer, copy: StoreServer, tmp_path: Path
) -> None:
    async with naming(store_server) as sentinel:
        observer = Remembering()
        async with (
            connected(sentinel.url, backlog=opened(tmp_path)) as store,
            connected(sentinel.url, observer=observer) as without_a_journal,
        ):
            await without_a_journal.renew([reservation("none", (DAILY, 100))])  # it is connected
            copy.freeze()
            await settled(store, 300)
            await settled(without_a_journal, 1, name="other")
        assert observer.dropped == 0  # the master has it
        assert (booked(store_server)["calls"], lines(tmp_path)) == (301, 300)
        copy.thaw()
        ask(copy, "REPLICAOF", "NO", "ONE")
        copy.client().flushall()  # it has not had them
        for master, left in (copy, 300), (store_server, 0):  # the first has been promoted, and nobody follows it yet
            sentinel.name(master)
            async with connected(sentinel.url, backlog=opened(tmp_path)) as store:
                await until(lambda: not store.pending)
            calls = 300 + (master is store_server)
            assert booked(master) == {"calls": calls, "prompt_tokens": calls, "completion_tokens": 2 * calls}
            assert lines(tmp_path) == left
        assert used(store_server, DAILY.key) == [903]


async def test_a_gateway_that_ends_leaves_nothing_to_the_next_one_where_a_replica_has_all(
    store_server: StoreServer, copy: StoreServer, tmp_path: Path
) -> None:
    async with naming(store_server) as sentinel, connected(sentinel.url, backlog=opened(tmp_path)) as store:
        await settled(store, 1)
    assert files(tmp_path) == []
    assert booked(copy)["calls"] == 1


async def test_a_settlement_that_was_sent_so_long_ago_that_it_would_be_forgotten_charges_nothing_it_cannot_find(
    store_sentinels: StoreSentinels,
) -> None:
    async with connected(store_sentinels.url) as store:
        found = reservation("found", (DAILY, 100))
        await store.reserve(found)
        calls = [found, *[reservation(f"lost-{age_s}", (DAILY, 100)) for age_s in (10, 300)]]
        for call, age_s in zip(calls, (300, 10, 300), strict=True):
            settlement = call.settlement(Usage(1, 2), charging=True)
            settlement.sent_us = round(CLOCK.now() * 1_000_000) - age_s * 1_000_000
            store.settle(settlement)
        await until(lambda: not store.pending)
        assert booked(store_sentinels.master)["calls"] == 2
        assert used(store_sentinels.master, DAILY.key) == [6]


async def test_of_sentinels_that_disagree_the_one_with_the_latest_failover_is_believed(
    store_server: StoreServer,
) -> None:
    with running_server() as old, ExitStack() as stack:
        async with naming(old) as stale, naming(None) as ignorant, naming(None) as latest:
            latest.name(store_server)
            silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports = [silent.getsockname()[1], stale.port, ignorant.port, latest.port, 1]
            sentinels = Sentinels(
                store_url.parse(f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/limits"), ()
            )
            async with asyncio.timeout(PROMPTLY_S):
                assert await sentinels.master() == ("127.0.0.1", store_server.port)
            await sentinels.close()


async def test_what_is_no_master_or_known_to_no_sentinel_is_away_and_the_log_says_why(
    own_store_sentinels: StoreSentinels,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    call = reservation("call", (DAILY, 1))
    for url, reason in [
        (own_store_sentinels.url.replace("/limits", "/others"), "a sentinel knows no master others"),
        ("redis+sentinel://127.0.0.1:1/limits", "ConnectionRefusedError"),
    ]:
        async with connected(url, there=False) as store:
            with pytest.raises(StoreUnavailable):
                await store.reserve(call)
        assert reason in caplog.records[-1].message
    replica = next(server for server in own_store_sentinels.servers if server is not own_store_sentinels.master)
    for writable, reason in [("no", "it is no master, but a slave"), ("yes", "READONLY")]:
        ask(replica, "CONFIG", "SET", "replica-read-only", writable)
        async with naming(replica) as sentinel, connected(sentinel.url, there=False) as store:
            with pytest.raises(StoreUnavailable):
                await store.reserve(call)
        assert reason in caplog.records[-1].message


async def test_the_url_names_the_users_of_servers_and_sentinels_and_the_database(
    own_store_sentinels: StoreSentinels,
) -> None:
    master = own_store_sentinels.master
    ask(master, "ACL", "SETUSER", "gate", "on", f">{SECRET}", "~gw:*", "+@all")
    for sentinel in own_store_sentinels.sentinels:
        ask(sentinel, "ACL", "SETUSER", "asker", "on", f">{SECRET}", "+sentinel", "allchannels")
    places = own_store_sentinels.url.removeprefix("redis+sentinel://").removesuffix("/limits")
    secret = quote(SECRET, "")
    url = f"redis+sentinel://gate:{secret}@{places}/limits/3?sentinel_username=asker&sentinel_password={secret}"
    async with connected(url) as store:
        assert (await store.reserve(reservation("call", (DAILY, 7)))).admitted
    with master.client(db=3) as client:
        assert client.exists(DAILY.key)


@pytest.mark.parametrize("mode", ["local", "deny"])
async def test_a_master_that_is_killed_under_load_is_replaced_and_every_call_booked_once(
    own_store_sentinels: StoreSentinels,
    tmp_path: Path,
    mode: Literal["local", "deny"],
) -> None:
    async with gateway_before(own_store_sentinels.url, mode, journal=tmp_path) as gateway:
        async with gateway.under_load(["acme", "globex"]):
            await gateway.counted(500)
            killed = own_store_sentinels.kill_master()
            await until(lambda: not gateway.store.up)
            await asyncio.to_thread(own_store_sentinels.wait_until_taken_over, killed)
            over_s = CLOCK.monotonic()
            await until(lambda: gateway.store.up)
            assert CLOCK.monotonic() - over_s < PROMPTLY_S
            await gateway.counted(500)
        await gateway.settled()
        assert gateway.ended["away" if mode == "deny" else "counted"] > 0
        tokens, calls = await gateway.booked()
        assert tokens == gateway.used
        assert calls.total() == gateway.ended["counted"] + gateway.ended["uncounted"]
        with own_store_sentinels.master.client() as client:
            months = [key.decode() for key in client.scan_iter("gw:*:tokens:*")]
            slots = [key for key in client.scan_iter("gw:*:at-once:*") if client.zcard(key)]
        assert sum(used(own_store_sentinels.master, *months)) == gateway.used.total()
        assert slots == []
        assert gateway.observer.dropped == 0


async def test_writes_that_the_replica_never_got_are_made_good_after_the_failover(
    own_store_sentinels: StoreSentinels,
) -> None:
    async with gateway_before(own_store_sentinels.url, "deny", timeout_s=5) as gateway:
        async with gateway.under_load(["acme"]):
            await gateway.counted(200)
            master = own_store_sentinels.master
            # No replica may connect again; who is connected stays, and must not give up a slow master.
            ask(master, "CONFIG", "SET", "requirepass", "other")
            with master.client(password="other") as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            await gateway.counted(300)
            own_store_sentinels.kill_master()
            await asyncio.to_thread(own_store_sentinels.wait_until_taken_over, master)
            await gateway.counted(200)
        await gateway.settled()
        tokens, calls = await gateway.booked()
        assert tokens == gateway.used
        assert calls.total() == gateway.ended["counted"]


async def test_a_master_that_is_demoted_or_frozen_is_left(
    own_store_sentinels: StoreSentinels,
) -> None:
    async with gateway_before(own_store_sentinels.url, "deny") as gateway:
        async with gateway.under_load(["acme"]):
            await gateway.counted(100)
            await asyncio.to_thread(own_store_sentinels.fail_over)
            await gateway.counted(100)
            frozen = own_store_sentinels.master
            frozen.freeze()
            await asyncio.to_thread(own_store_sentinels.wait_until_taken_over, frozen)
            await gateway.counted(100)
            frozen.thaw()
            await gateway.counted(100)
        await gateway.settled()
        assert (await gateway.booked())[0] == gateway.used
