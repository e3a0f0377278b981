"""Settings in a real store and in memory behave alike: nobody's change is lost, and lost data comes back once."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime

import pytest

from gateway.admission.limit import Limit
from gateway.admission.memory import MemoryStore
from gateway.admission.redis.ledger import RedisLedger
from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.settings import RedisSettings
from gateway.admission.redis.store import RedisStore
from gateway.admission.settings.memory import MemorySettings
from gateway.admission.settings.settings import NEVER, Change, Kept, Settings
from gateway.admission.store import Store, StoreUnavailable
from gateway.clock import SystemClock
from tests.limiting import LEASE_S, RETENTION_S, Remembering, limit, reservation
from tests.ports import free_port
from tests.store_kinds import KINDS
from tests.store_proxy import proxy_before
from tests.store_sentinel import StoreSentinels, shared_store_sentinels, store_sentinels  # noqa: F401 fixtures
from tests.store_server import StoreServer

KEY = "gw:{colours}:settings"
TRIES = 100


@pytest.fixture(params=KINDS)
async def settings(request: pytest.FixtureRequest) -> AsyncIterator[Settings]:
    made: Settings = MemorySettings() if request.param == "memory" else RedisSettings(url_of(request), "colours")
    yield made
    await made.close()


def url_of(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store of the asked kind that holds nothing."""
    if request.param == "redis":
        server: StoreServer = request.getfixturevalue("store_server")
        return server.url
    sentinels: StoreSentinels = request.getfixturevalue("store_sentinels")
    return sentinels.url


async def test_what_was_never_written_is_nothing_of_no_version(settings: Settings) -> None:
    assert await settings.read() == Kept(NEVER, {})
    assert await settings.version() == NEVER


async def test_each_change_moves_the_version_that_is_read_with_it(settings: Settings) -> None:
    seen = {NEVER}
    for change, entries in [
        (Change("a", b"1"), {"a": b"1"}),
        (Change("b\u00fc", b"\x00\xff"), {"a": b"1", "b\u00fc": b"\x00\xff"}),
        (Change("a", b"2"), {"a": b"2", "b\u00fc": b"\x00\xff"}),
        (Change("b\u00fc", None), {"a": b"2"}),
        (Change("a", None), {}),
    ]:
        await settings.change([change])
        kept = await settings.read()
        assert kept.entries == entries
        assert await settings.version() == kept.version
        assert kept.version not in seen
        seen.add(kept.version)


async def test_what_somebody_else_changed_meanwhile_is_left_where_that_is_asked(settings: Settings) -> None:
    await settings.change([Change("a", b"1"), Change("b", b"1")])
    await settings.change([Change("a", None, b"0"), Change("b", b"2", b"1"), Change("c", b"3", b"1")])
    assert (await settings.read()).entries == {"a": b"1", "b": b"2"}


async def test_of_many_writers_at_once_none_loses_anothers_change(settings: Settings) -> None:
    await asyncio.gather(*[settings.change([Change(f"n{n}", b"%d" % n)]) for n in range(50)])
    assert (await settings.read()).entries == {f"n{n}": b"%d" % n for n in range(50)}


async def test_only_what_is_lost_is_written_back(settings: Settings) -> None:
    lost = Kept(b"v1", {"a": b"1"})
    await settings.restore(lost)
    assert await settings.read() == lost
    await settings.restore(Kept(b"v2", {"b": b"2"}))
    assert await settings.read() == lost


async def test_a_version_comes_never_again_also_where_the_store_lost_its_data(store_server: StoreServer) -> None:
    settings = RedisSettings(store_server.url, "colours")
    await settings.change([Change("a", b"1")])
    before = await settings.version()
    with store_server.client() as client:
        client.flushall()
        client.script_flush()
    await settings.change([Change("a", b"2")])
    assert await settings.version() != before
    await settings.close()


async def test_settings_have_one_key_that_never_expires(store_server: StoreServer) -> None:
    settings = RedisSettings(store_server.url, "colours")
    await settings.change([Change("a", b"1")])
    with store_server.client() as client:
        assert client.keys() == [KEY.encode()]
        assert client.ttl(KEY) == -1
    await settings.close()


async def test_what_a_gateway_knows_is_merged_into_what_was_set_since_the_store_lost_it(
    store_server: StoreServer,
) -> None:
    settings = RedisSettings(store_server.url, "colours")
    await settings.change([Change("a", b"1"), Change("b", b"1")])
    known = await settings.read()
    await settings.change([Change("c", b"1")])
    assert not known.is_lost_at(await settings.version())
    with store_server.client() as client:
        client.flushall()
    assert known.is_lost_at(await settings.version())
    await settings.change([Change("b", b"2"), Change("d", b"2")])
    assert known.is_lost_at(await settings.version())
    await asyncio.gather(*[settings.restore(known) for _ in range(3)])
    merged = await settings.read()
    assert merged.entries == {"a": b"1", "b": b"2", "d": b"2"}
    assert not known.is_lost_at(merged.version)
    await settings.change([Change("a", None)])
    await settings.restore(known)  # by a gateway that was away meanwhile
    assert (await settings.read()).entries == {"b": b"2", "d": b"2"}
    await settings.close()


async def test_however_often_the_store_loses_all_a_version_stays_short(store_server: StoreServer) -> None:
    settings, known = RedisSettings(store_server.url, "colours"), Kept()
    with store_server.client() as client:
        for number in range(20):
            client.flushall()
            await settings.change([Change(f"n{number}", b"1")])
            if known.is_lost_at(await settings.version()):
                await settings.restore(known)
            known = await settings.read()
    assert len(known.entries) == 20
    assert len(known.version) < 400
    assert not known.is_lost_at(await settings.version())
    await settings.close()


async def test_a_store_that_is_not_there_says_why() -> None:
    settings = RedisSettings(f"redis://127.0.0.1:{free_port()}/0", "colours")
    for asked in (settings.version(), settings.read(), settings.change([Change("a", b"1")])):
        with pytest.raises(StoreUnavailable) as raised:
            await asked
        assert "connect" in str(raised.value.__cause__)
    await settings.close()


async def test_a_key_that_was_overwritten_by_hand_holds_nothing_until_a_change(store_server: StoreServer) -> None:
    settings = RedisSettings(store_server.url, "colours")
    await settings.change([Change("a", b"1")])
    known = await settings.read()
    with store_server.client() as client:
        for mend in (settings.change([Change("a", b"1")]), settings.restore(known)):
            client.set(KEY, "not ours")
            assert await settings.version() == NEVER
            assert await settings.read() == Kept()
            await mend
            assert (await settings.read()).entries == {"a": b"1"}
    await settings.close()


def hang_up(listening: socket.socket) -> None:
    """Reset whoever connects, at once."""
    with suppress(OSError):  # once it is shut down
        while True:
            connected, _ = listening.accept()
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connected.close()


async def test_a_server_that_hangs_up_as_it_is_connected_to_cannot_be_asked() -> None:
    """On uvloop one in some tries finds the connection closed as it writes to it, which is a RuntimeError there."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", free_port())))
        stack.enter_context(ThreadPoolExecutor()).submit(hang_up, listening)
        stack.callback(listening.shutdown, socket.SHUT_RDWR)
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        settings, levels, ledger = RedisSettings(url, "colours"), RedisLevels(url), RedisLedger(url)
        today = datetime.now(UTC).date()
        for _ in range(TRIES):
            with pytest.raises(StoreUnavailable):
                await settings.version()
            with pytest.raises(StoreUnavailable):
                await levels.used(LIMITS)
            with pytest.raises(StoreUnavailable):
                await anext(ledger.postings("acme", today, today))
        await settings.close()


async def test_who_loses_a_connection_takes_neither_theirs_nor_the_next_one_from_others(
    store_server: StoreServer,
) -> None:
    async with proxy_before(store_server.port) as proxy:
        settings = RedisSettings(proxy.url, "colours")
        await settings.change([Change("a", b"1")])
        proxy.delay_s = 0.05
        for lost in range(1, 4):
            proxy.lose("hang up")
            assert await asyncio.gather(*[settings.read() for _ in range(4)]) == [await settings.read()] * 4
            # One was there, three are new, and one that is lost is made good by one.
            assert proxy.connections == 1 + 4 * lost
        await settings.close()


LIMITS = (limit("bucket", 10, window_s=86_400), limit("day", 10), limit("month", 0), limit("lease", 10))


async def used_after_two_calls(store: Store) -> None:
    for call_id, costs in {"one": (3, 4, 0, 1), "two": (1, 1, 0, 1)}.items():
        asked = [(one, cost) for one, cost in zip(LIMITS, costs, strict=True) if one.limit]
        assert (await store.reserve(reservation(call_id, *asked))).admitted


async def test_what_is_used_is_read_alike_and_without_a_trace(store_server: StoreServer) -> None:
    nothing: list[Limit] = []
    memory = MemoryStore(SystemClock(), lease_s=LEASE_S)
    await used_after_two_calls(memory)
    assert await memory.used(LIMITS) == [4, 5, 0, 2]

    store = RedisStore(
        store_server.url,
        SystemClock(),
        timeout_s=2,
        lease_s=LEASE_S,
        retention_s=RETENTION_S,
        observer=Remembering(),
    )
    store.start()
    await used_after_two_calls(store)
    levels = RedisLevels(store_server.url)
    with store_server.client() as client:
        client.zadd(LIMITS[-1].key, {"a killed gateway's, long ago": 1})
        before = {key: client.dump(key) for key in client.scan_iter()}
        assert await levels.used(LIMITS) == [4, 5, 0, 2]
        assert await levels.used(nothing) == []
        assert {key: client.dump(key) for key in client.scan_iter()} == before
        client.lpush("gw:list", 1)
    overwritten = limit("day", 10, key="gw:list")
    assert await levels.used([overwritten, LIMITS[1]]) == [0, 5]
    await store.close()


async def test_what_is_used_is_read_of_the_master_that_sentinels_name(store_sentinels: StoreSentinels) -> None:  # noqa: F811 the fixture
    store = RedisStore(
        store_sentinels.url,
        SystemClock(),
        timeout_s=2,
        lease_s=LEASE_S,
        retention_s=RETENTION_S,
        observer=Remembering(),
    )
    store.start()
    await used_after_two_calls(store)
    assert await RedisLevels(store_sentinels.url).used(LIMITS) == [4, 5, 0, 2]
    await store.close()


async def test_what_is_used_cannot_be_read_where_nobody_answers() -> None:
    with pytest.raises(StoreUnavailable):
        await RedisLevels(f"redis://127.0.0.1:{free_port()}/0").used(LIMITS)
