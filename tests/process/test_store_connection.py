"""The way to the store's server: what its URL names, TLS, who is let in, and what is no such server."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.server import Server
from gateway.admission.redis.settings import RedisSettings
from gateway.admission.redis.store import RedisStore
from gateway.admission.settings.settings import NEVER, Change, Kept
from gateway.admission.store import StoreUnavailable
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from tests.certificates import certified
from tests.deadlines import DEADLINE_S
from tests.limiting import RETENTION_S, Remembering, limit, reservation
from tests.store_proxy import proxy_before
from tests.store_server import StoreServer, own_store_server, shared_store_server, store_server  # noqa: F401 fixtures

SECRET = "s3cret/%@:# ü"
RIGHTS = (
    "EVALSHA SCRIPT|LOAD TIME GET SET DEL PTTL PEXPIRE SETRANGE HINCRBY HSET ZADD ZREM ZCARD ZREMRANGEBYSCORE SELECT "
)
RIGHTS += "SCAN HSCAN "  # of who reads the ledger
RIGHTS += "HGET HGETALL HDEL EXISTS ZCOUNT"  # of overrides, and of who looks at what is used
CALL = reservation("call", (limit("day", 1), 1))


@asynccontextmanager
async def connected(url: str, observer: Remembering | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        url, SystemClock(), timeout_s=5, lease_s=30, retention_s=RETENTION_S, observer=observer or Remembering()
    )
    store.start()
    try:
        yield store
    finally:  # uvloop waits for ever for a connection that a failed test left open
        await store.close()


@pytest.mark.parametrize("database", ["/3", "?db=3"])
@pytest.mark.parametrize("user", ["", "default", "al:ice/ü"])
async def test_the_url_names_user_password_and_database(
    own_store_server: StoreServer,  # noqa: F811
    user: str,
    database: str,
) -> None:
    with own_store_server.client() as client:
        may = [f"+{word}".lower() for word in RIGHTS.split()]
        client.execute_command("ACL", "SETUSER", user or "default", "reset", f">{SECRET}", "on", "~gw:*", *may)
    who = f"{quote(user, '')}:{quote(SECRET, '')}"
    url = f"redis://{who}@127.0.0.1:{own_store_server.port}{database}"
    async with connected(url) as store:
        assert (await store.reserve(CALL)).admitted
        other = reservation("other")
        await store.reserve(other)
        store.settle(other.settlement(Usage(2, 0)))
        await store.renew([other])  # goes after the settlement
        today = datetime.fromtimestamp(SystemClock().now(), UTC).date()
        for tenant in ("acme", None):
            booked = [one async for one in store.ledger(tenant, today, today + timedelta(days=1))]
            assert sorted([(one.tenant, one.counter, one.figure) for one in booked]) == [
                ("acme", "calls", 1),
                ("acme", "prompt_tokens", 2),
            ]
        assert await RedisLevels(url).used(CALL.limits) == [1]
        settings = RedisSettings(url, "colours")
        await settings.restore(Kept(b"v", {}))
        await settings.change([Change("a", b"1", b"0"), Change("b", None), Change("c", b"2")])
        assert (await settings.read()).entries == {"c": b"2"}
        assert await settings.version() != NEVER
        await settings.close()
    with own_store_server.client(db=3, username=user or "default", password=SECRET) as client:
        assert client.get(CALL.record)


@pytest.mark.parametrize(
    "without",
    [
        "EVALSHA",
        "SCRIPT|LOAD",
        "TIME",
        "GET",
        "SET",
        "DEL",
        "PTTL",
        "PEXPIRE",
        "HINCRBY",
        "HSET",
        "ZADD",
        "ZREM",
        "ZCARD",
    ],
)
async def test_a_user_without_one_of_the_rights_cannot_be_served_and_nothing_is_half_done(
    own_store_server: StoreServer,  # noqa: F811
    without: str,
) -> None:
    with own_store_server.client() as client:
        may = [f"+{word}".lower() for word in RIGHTS.split() if word != without]
        client.execute_command("ACL", "SETUSER", "gate", "reset", f">{SECRET}", "on", "~gw:*", *may)
        observer = Remembering()
        async with connected(f"redis://gate:{quote(SECRET, '')}@127.0.0.1:{own_store_server.port}", observer) as store:
            with pytest.raises(StoreUnavailable):
                await store.reserve(reservation("call", (limit("day", 9), 1), (limit("lease", 9), 1)))
            assert not store.up
        assert [key for key in client.scan_iter() if client.ttl(key) == -1] == []


async def test_the_url_names_what_the_server_lists_the_connection_as(store_server: StoreServer) -> None:  # noqa: F811
    async with connected(f"{store_server.url}?client_name=gate") as store:
        assert (await store.reserve(CALL)).admitted
        with store_server.client() as client:
            assert "gate" in [one["name"] for one in client.client_list()]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://nobody:guess@127.0.0.1:{port}", "WRONGPASS"),
        ("redis://:guess@127.0.0.1:{port}", "WRONGPASS"),
        ("redis://127.0.0.1:{port}", "NOAUTH"),
        ("redis://:s3cret@127.0.0.1:{port}/99", "ERR DB index is out of range"),
        ("redis://:s3cret@127.0.0.1:1", "ConnectionRefusedError"),
        ("redis://:s3cret@nowhere.invalid:{port}", "gaierror"),
    ],
)
async def test_a_server_that_does_not_let_us_in_is_away_and_the_log_says_why(
    own_store_server: StoreServer,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    url: str,
    reason: str,
) -> None:
    caplog.set_level(logging.WARNING)
    with own_store_server.client() as client:
        client.config_set("requirepass", "s3cret")
    observer = Remembering()
    async with connected(url.format(port=own_store_server.port), observer) as store:
        with pytest.raises(StoreUnavailable):
            await store.reserve(CALL)
    assert observer.failed == {"connect": 1}
    (record,) = caplog.records
    assert reason in record.message
    assert "s3cret" not in caplog.text
    assert "guess" not in caplog.text


async def test_what_is_no_such_server_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web:
        port = web.sockets[0].getsockname()[1]
        async with connected(f"redis://127.0.0.1:{port}") as store:
            with pytest.raises(StoreUnavailable):
                await store.reserve(CALL)
    (record,) = caplog.records
    assert "Protocol error" in record.message


async def test_a_server_that_says_nothing_is_not_waited_for(own_store_server: StoreServer) -> None:  # noqa: F811
    own_store_server.freeze()
    with pytest.raises(TimeoutError):
        await Server(own_store_server.url, ()).connect(within_s=0.05)
    own_store_server.thaw()
    with own_store_server.client() as client:
        async with asyncio.timeout(DEADLINE_S):
            while len(client.client_list()) > 1:
                await asyncio.sleep(0.01)


async def test_an_idle_connection_is_probed(store_server: StoreServer) -> None:  # noqa: F811
    connection = await Server(store_server.url, ()).connect(within_s=5)
    assert connection._transport is not None
    connected = connection._transport.get_extra_info("socket")
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert 0 < connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
    connection.abort()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_rediss_speaks_tls_to_whom_the_certificate_names(
    store_server: StoreServer,  # noqa: F811
    tmp_path: Path,
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    tls, authority = certified(tmp_path)

    async def speak() -> None:
        async with proxy_before(store_server.port, tls) as proxy:
            where = f"{proxy.port}/0?ssl_ca_certs={authority}"
            async with connected(f"rediss://127.0.0.1:{where}") as store:
                assert (await store.reserve(CALL)).admitted
                store.settle(CALL.settlement(None))
            async with connected(f"rediss://localhost:{where}") as store:
                with pytest.raises(StoreUnavailable):
                    await store.reserve(CALL)

    run(speak())
