"""A shared store that is away, frozen, slow or forgetful: what a call waits, and that everything counts once."""

import asyncio
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from gateway.admission.limit import Limit
from gateway.admission.redis import backlog, lane
from gateway.admission.redis.store import RedisStore
from gateway.admission.store import StoreUnavailable
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S, PROMPTLY_S, STORE_TIMEOUT_S
from tests.limiting import RETENTION_S, Remembering, limit, reservation
from tests.store_proxy import Loss, proxy_before
from tests.store_server import (  # noqa: F401 fixtures
    StoreServer,
    own_store_server,
    running_server,
    shared_store_server,
    store_server,
)

DAILY = limit("day", 1000)
AT_ONCE = limit("lease", 500)
CLOCK = SystemClock()


@asynccontextmanager
async def connected(
    url: str, observer: Remembering | None = None, *, timeout_s: float = STORE_TIMEOUT_S
) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        url, CLOCK, timeout_s=timeout_s, lease_s=30, retention_s=RETENTION_S, observer=observer or Remembering()
    )
    store.start()
    try:
        yield store
    finally:
        await store.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def levels(store: RedisStore, *limits: Limit) -> list[int]:
    probe = reservation("probe", *[(one, 2**60) for one in limits], (limit("day", 0), 1))
    return [used for used, _ in (await store.reserve(probe)).levels][:-1]


async def seconds(work: Awaitable[object]) -> float:
    started = CLOCK.monotonic()
    with pytest.raises(StoreUnavailable):
        await work
    return CLOCK.monotonic() - started


async def test_a_frozen_store_costs_the_first_calls_its_timeout_and_later_calls_nothing(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    observer = Remembering()
    async with connected(own_store_server.url, observer) as store:
        await store.reserve(reservation("before", (DAILY, 1)))
        own_store_server.freeze()
        first = [
            asyncio.ensure_future(seconds(store.reserve(reservation(f"first-{i}", (DAILY, 1)))))
            for i in range(2 * lane.MAX_BATCH + 1)
        ]
        # One timeout, though they fill three pipelines: all hear of it in the turn in which the first does.
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        assert all(call.done() for call in first)
        assert max(call.result() for call in first) < STORE_TIMEOUT_S + PROMPTLY_S
        later = [await seconds(store.reserve(reservation(f"later-{i}", (DAILY, 1)))) for i in range(50)]
        assert sum(later) < PROMPTLY_S
        assert not store.up
        assert observer.failed["reserve"] == 1
        own_store_server.thaw()
        await until(lambda: store.up)
        assert (await store.reserve(reservation("after", (DAILY, 1)))).admitted


async def test_a_reservation_that_a_frozen_store_takes_late_finds_itself_given_back(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    async with connected(own_store_server.url) as store:
        await store.reserve(reservation("before", (DAILY, 1)))
        own_store_server.freeze()
        for i in range(3):
            late = reservation(f"late-{i}", (DAILY, 5), (AT_ONCE, 1))
            with pytest.raises(StoreUnavailable) as failure:
                await store.reserve(late)
            if failure.value.sent:
                store.settle(late.settlement(None, uncertain=True))
        own_store_server.thaw()
        await until(lambda: store.up and not store.pending)
        assert await levels(store, DAILY, AT_ONCE) == [1, 0]


async def test_settlements_wait_for_a_store_that_is_away_and_arrive_once(own_store_server: StoreServer) -> None:  # noqa: F811
    observer = Remembering()
    async with connected(own_store_server.url, observer) as store:
        calls = [reservation(f"call-{i}", (DAILY, 10), (AT_ONCE, 1)) for i in range(60)]
        await asyncio.gather(*[store.reserve(call) for call in calls])
        own_store_server.freeze()
        for call in calls:
            store.settle(call.settlement(Usage(1, 1)))
        await until(lambda: not store.up)
        assert store.pending == 60
        own_store_server.thaw()
        await until(lambda: store.up)
        assert store.pending == 0
        assert await levels(store, DAILY, AT_ONCE) == [120, 0]
        assert observer.dropped == 0


async def test_a_store_that_refuses_connections_costs_nothing_and_is_found_again(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    async with connected(own_store_server.url) as store:
        await store.reserve(reservation("before", (DAILY, 1)))
        own_store_server.stop()
        waits = [await seconds(store.reserve(reservation(f"call-{i}", (DAILY, 1)))) for i in range(50)]
        assert sum(waits) < PROMPTLY_S
        own_store_server.start()
        await until(lambda: store.up)
        assert (await store.reserve(reservation("after", (DAILY, 1)))).admitted
        assert await levels(store, DAILY) == [1]


async def test_a_gateway_starts_before_its_store(own_store_server: StoreServer) -> None:  # noqa: F811
    own_store_server.stop()
    async with connected(own_store_server.url, timeout_s=DEADLINE_S) as store:
        assert await seconds(store.reserve(reservation("early", (DAILY, 1)))) < PROMPTLY_S
        own_store_server.start()
        await until(lambda: store.up)
        assert (await store.reserve(reservation("late", (DAILY, 1)))).admitted


async def test_a_server_that_was_restarted_between_calls_costs_no_call(own_store_server: StoreServer) -> None:  # noqa: F811
    observer = Remembering()
    async with connected(own_store_server.url, observer, timeout_s=2) as store:
        for i in range(3):
            assert (await store.reserve(reservation(f"call-{i}", (DAILY, 1)))).admitted
            own_store_server.stop()
            own_store_server.start()
        assert (await store.reserve(reservation("last", (DAILY, 1)))).admitted
        assert observer.failed == {}


@pytest.mark.parametrize("how", ["swallow", "hang up"])
async def test_a_lost_reply_charges_once(store_server: StoreServer, how: Loss) -> None:  # noqa: F811
    async with proxy_before(store_server.port) as proxy, connected(proxy.url) as store:
        await store.reserve(reservation("before", (DAILY, 1), (AT_ONCE, 1)))
        proxy.lose(how)
        call = reservation("call", (DAILY, 10), (AT_ONCE, 1))
        if how == "hang up":
            assert (await store.reserve(call)).admitted
        else:
            with pytest.raises(StoreUnavailable) as failure:
                await store.reserve(call)
            assert failure.value.sent
            await until(lambda: store.up)
        assert await levels(store, DAILY, AT_ONCE) == [11, 2]
        proxy.lose(how)
        store.settle(call.settlement(Usage(1, 1), uncertain=how == "swallow"))
        await asyncio.wait_for(proxy.lost.wait(), DEADLINE_S)
        await until(lambda: store.up and not store.pending)
        assert await levels(store, DAILY, AT_ONCE) == [3, 1]


async def test_many_lost_replies_charge_every_call_once(store_server: StoreServer) -> None:  # noqa: F811
    chance = random.Random(8)
    async with proxy_before(store_server.port) as proxy, connected(proxy.url, timeout_s=0.05) as store:
        used = 0
        for i in range(100):
            await until(lambda: store.up)
            call = reservation(f"call-{i}", (DAILY, 9), (AT_ONCE, 1))
            if chance.random() < 0.2:
                proxy.lose(chance.choice(["swallow", "hang up"]))
            try:
                await store.reserve(call)
                sent, uncertain = True, False
            except StoreUnavailable as failure:
                sent, uncertain = failure.sent, True
            if sent:
                used += 3
                store.settle(call.settlement(Usage(1, 2), uncertain=uncertain))
        await until(lambda: store.up and not store.pending)
        assert used > 240
        assert await levels(store, DAILY, AT_ONCE) == [used, 0]


async def test_callers_that_leave_reserve_nothing_and_disturb_nobody(store_server: StoreServer) -> None:  # noqa: F811
    chance = random.Random(9)
    few = limit("day", 3)

    async def leave(store: RedisStore, i: int) -> None:
        call = asyncio.ensure_future(store.reserve(reservation(f"leaves-{i}", (DAILY, 1), (AT_ONCE, 1))))
        await asyncio.sleep(chance.random() * 0.5)
        if call.cancel():
            return
        store.settle(reservation(f"leaves-{i}", (DAILY, 1), (AT_ONCE, 1)).settlement(None))

    async with proxy_before(store_server.port) as proxy, connected(proxy.url, timeout_s=2) as store:
        await store.reserve(reservation("before", (DAILY, 1)))
        proxy.delay_s = 0.02
        leaving = [asyncio.create_task(leave(store, i)) for i in range(400)]
        stays = [await store.reserve(reservation(f"stays-{i}", (few, 1))) for i in range(10)]
        await asyncio.gather(*leaving)
        assert [answer.admitted for answer in stays] == [True] * 3 + [False] * 7
        assert [answer.levels[0][0] for answer in stays] == [0, 1, 2] + [3] * 7
        await until(lambda: not store.pending)
        assert await levels(store, DAILY, AT_ONCE) == [1, 0]
        assert proxy.connections == 1


async def test_a_caller_that_leaves_in_the_turn_in_which_its_answer_comes_reserves_nothing(
    store_server: StoreServer,  # noqa: F811
) -> None:
    async with connected(store_server.url) as store:
        call = reservation("leaves", (DAILY, 5), (AT_ONCE, 1))
        reserving = asyncio.ensure_future(store.reserve(call))

        def leave(_: object) -> None:
            reserving.cancel()

        await asyncio.sleep(0)
        # What is asked next is answered in the same read, just after.
        store._lane.ask("renew", store._scripts.renew(call), call.account.tag, late=leave).cancel()
        with pytest.raises(asyncio.CancelledError):
            await reserving
        await until(lambda: not store.pending)
        assert await levels(store, DAILY, AT_ONCE) == [0, 0]


async def test_a_caller_that_leaves_a_store_that_never_answers_reserves_nothing(
    store_server: StoreServer,  # noqa: F811
) -> None:
    observer = Remembering()
    async with proxy_before(store_server.port) as proxy, connected(proxy.url, observer) as store:
        await store.reserve(reservation("before", (DAILY, 1)))
        proxy.lose("swallow")
        call = asyncio.ensure_future(store.reserve(reservation("leaves", (DAILY, 5), (AT_ONCE, 1))))
        await asyncio.wait_for(proxy.lost.wait(), DEADLINE_S)
        call.cancel()
        await asyncio.wait({call})
        await until(lambda: observer.failed["reserve"] == 1)
        await until(lambda: store.up and not store.pending)
        assert await levels(store, DAILY, AT_ONCE) == [1, 0]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_stall_of_our_own_loop_is_not_the_stores_failure(
    store_server: StoreServer,  # noqa: F811
    run: Callable[[Awaitable[None]], None],
) -> None:
    timeout_s = STORE_TIMEOUT_S / 2

    def stall() -> None:
        time.sleep(2 * timeout_s)  # the loop itself is held up: nothing is waited for
        reading.recv(1)

    async def stalled() -> None:
        observer = Remembering()
        # Stalls where sockets are looked at, and where tasks run: loops differ in what they do next.
        asyncio.get_running_loop().add_reader(reading, stall)
        async with connected(store_server.url, observer, timeout_s=timeout_s) as store:
            await store.reserve(reservation("before", (DAILY, 1)))
            for i in range(2):
                call = asyncio.ensure_future(store.reserve(reservation(f"call-{i}", (DAILY, 1))))
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # the command is out
                writing.send(b".")
                if i:
                    stall()
                assert (await call).admitted
        assert observer.failed == {}
        asyncio.get_running_loop().remove_reader(reading)

    reading, writing = socket.socketpair()
    with reading, writing:
        run(stalled())


@pytest.mark.parametrize("option", ["maxmemory", "min-replicas-to-write"])
async def test_a_server_that_answers_but_takes_no_writes_is_away_and_settlements_wait(
    own_store_server: StoreServer,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    option: str,
) -> None:
    observer = Remembering()
    with own_store_server.client() as client:
        async with connected(own_store_server.url, observer) as store:
            call = reservation("call", (DAILY, 10), (AT_ONCE, 1))
            await store.reserve(call)
            client.config_set(option, "1")
            refused = [store.reserve(reservation(f"refused-{i}", (DAILY, 1))) for i in range(10)]
            for failure in await asyncio.gather(*refused, return_exceptions=True):
                assert isinstance(failure, StoreUnavailable)
            store.settle(call.settlement(Usage(2, 2)))
            await until(lambda: observer.failed["connect"] > 1)
            assert (store.up, store.pending, observer.failed["reserve"]) == (False, 1, 1)
            client.config_set(option, "0")
            await until(lambda: store.up)
            assert await levels(store, DAILY, AT_ONCE) == [4, 0]
            assert observer.dropped == 0
    assert len(caplog.records) == 2


async def test_waiting_settlements_are_bounded_and_what_is_dropped_is_counted(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    own_store_server.stop()
    observer = Remembering()
    async with connected(own_store_server.url, observer) as store:
        await seconds(store.reserve(reservation("early", (DAILY, 1))))
        settlement = reservation("call", (DAILY, 1)).settlement(None)
        for _ in range(backlog.MAX_WAITING + 7):
            store.settle(settlement)
        assert observer.dropped == 7
        assert store.pending == backlog.MAX_WAITING
        own_store_server.start()
        await until(lambda: store.up and not store.pending)


async def test_closing_delivers_what_is_pending(store_server: StoreServer) -> None:  # noqa: F811
    observer = Remembering()
    async with connected(store_server.url, observer, timeout_s=5) as store:
        calls = [reservation(f"call-{i}", (DAILY, 1), (AT_ONCE, 1)) for i in range(lane.MAX_BATCH + 1)]
        await asyncio.gather(*[store.reserve(call) for call in calls])
        for call in calls:
            store.settle(call.settlement(None))
    with store_server.client() as client:
        assert list(client.scan_iter()) == []
    assert observer.dropped == 0


async def test_closing_before_a_frozen_store_takes_two_seconds_and_counts_what_is_lost(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    observer = Remembering()
    store = RedisStore(
        own_store_server.url, CLOCK, timeout_s=STORE_TIMEOUT_S, lease_s=30, retention_s=RETENTION_S, observer=observer
    )
    store.start()
    call = reservation("call", (DAILY, 1))
    await store.reserve(call)
    own_store_server.freeze()
    store.settle(call.settlement(None))
    started = CLOCK.monotonic()
    await store.close()
    assert CLOCK.monotonic() - started < lane.CLOSE_WITHIN_S + PROMPTLY_S
    assert observer.dropped == 1
    with pytest.raises(StoreUnavailable):
        await store.reserve(reservation("after", (DAILY, 1)))


async def test_going_away_and_coming_back_is_logged_once_each_without_the_password(
    own_store_server: StoreServer,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="gateway.admission")
    with own_store_server.client() as client:
        client.config_set("requirepass", "s3cret")
    async with connected(f"redis://:s3cret@127.0.0.1:{own_store_server.port}/0") as store:
        await store.reserve(reservation("before", (DAILY, 1)))
        own_store_server.freeze()
        for i in range(5):
            await seconds(store.reserve(reservation(f"call-{i}", (DAILY, 1))))
        own_store_server.thaw()
        await until(lambda: store.up)
    assert len(caplog.records) == 2
    assert "s3cret" not in caplog.text
