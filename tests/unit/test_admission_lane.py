"""What goes together in a pipeline, and what becomes of whoever waits when one fails, or the lane itself."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest

from gateway.admission.redis.backlog import Memory
from gateway.admission.redis.connection import CommandRefused
from gateway.admission.redis.lane import COMPANY_WITHIN_S, ENOUGH, FAST, FLUSH_AFTER_S, MAX_BATCH, Lane
from gateway.admission.redis.link import Link, LinkFailed, Outcome
from gateway.admission.redis.server import Server
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock, SystemClock
from tests.deadlines import DEADLINE_S
from tests.limiting import Remembering

SERVER = Server("redis://127.0.0.1:1/0", [])


class Held(Link):
    """A link whose other end is the test."""

    def __init__(self) -> None:
        super().__init__(SERVER, SystemClock())
        self.pipelines: list[list[bytes]] = []
        self._answer: Callable[[Outcome], None] | None = None

    def exchange(self, commands: Sequence[bytes], then: Callable[[Outcome], None], *, within_s: float) -> None:
        assert self._answer is None, "one at a time"
        assert within_s > 0
        self.pipelines.append(list(commands))
        self._answer = then

    def answer(self, *replies: Any) -> None:
        self.end(list(replies))

    def end(self, outcome: Outcome) -> None:
        assert self._answer is not None
        answer, self._answer = self._answer, None
        answer(outcome)


def lane_of(link: Link, observer: Remembering, clock: Clock | None = None) -> Lane[bytes]:
    backlog = Memory[bytes](observer.settlement_dropped)
    return Lane(link, clock or SystemClock(), timeout_s=1, observer=observer, pack=bytes, backlog=backlog)


@asynccontextmanager
async def connected(clock: Clock | None = None) -> AsyncIterator[tuple[Lane[bytes], Held, Remembering]]:
    link, observer = Held(), Remembering()
    lane = lane_of(link, observer, clock)
    lane.start()
    link.answer()
    assert link.pipelines.pop() == []
    yield lane, link, observer
    assert not lane.pending
    await lane.close()


async def gone(link: Held, pipelines: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(link.pipelines) < pipelines:
            await asyncio.sleep(0.001)


async def test_what_one_turn_asks_goes_together_and_what_comes_meanwhile_goes_next_posts_first() -> None:
    async with connected() as (lane, link, observer):
        first = [lane.ask("reserve", b"a"), lane.ask("renew", b"b")]
        assert link.pipelines == []
        await asyncio.sleep(0)
        later = lane.ask("reserve", b"c")
        lane.post(b"d")
        await asyncio.sleep(0)
        assert link.pipelines == [[b"a", b"b"]]
        link.answer(1, 2)
        assert link.pipelines[1:] == [[b"d", b"c"]]
        link.answer(4, 3)
        assert [await reply for reply in [*first, later]] == [1, 2, 3]
        assert observer.answered == {"reserve": 2, "renew": 1, "settle": 1}


async def test_what_is_posted_waits_for_company_but_not_for_long() -> None:
    async with connected() as (lane, link, _):
        for i in (1, 2):
            reply = lane.ask("reserve", b"a")
            await asyncio.sleep(0)
            lane.post(b"b")
            link.answer(1)
            assert await reply == 1
            assert link.pipelines == [[b"a"], [b"b"]] * (i - 1) + [[b"a"]]
            await gone(link, 2 * i)
            link.answer(2)
        lane.post(b"c")
        await gone(link, 5)
        link.answer(3)
        assert link.pipelines == [[b"a"], [b"b"], [b"a"], [b"b"], [b"c"]]


async def test_nothing_is_sent_when_what_was_posted_has_gone_with_others() -> None:
    async with connected() as (lane, link, _):
        lane.post(b"a")
        reply = lane.ask("reserve", b"b")
        await asyncio.sleep(0)
        link.answer(1, 2)
        assert await reply == 2
        await asyncio.sleep(2 * FLUSH_AFTER_S)
        assert link.pipelines == [[b"a", b"b"]]


class SetClock(SystemClock):
    """A clock that the test sets."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


async def asked_every(seconds: float, lane: Lane[bytes], link: Held, clock: SetClock) -> None:
    """Ask for a while, one at a time."""
    for _ in range(100):
        clock.now_s += seconds
        reply = lane.ask("reserve", b"a")
        await gone(link, 1)
        link.answer(1)
        assert await reply == 1
        link.pipelines.clear()


async def test_where_calls_come_fast_a_pipeline_waits_for_company_but_not_for_long() -> None:
    clock = SetClock()
    async with connected(clock) as (lane, link, _):
        await asked_every(0.9 * COMPANY_WITHIN_S / FAST, lane, link, clock)
        first = lane.ask("reserve", b"a")
        for _ in range(3):
            await asyncio.sleep(0)
        assert link.pipelines == []
        second = lane.ask("reserve", b"b")
        await gone(link, 1)
        assert link.pipelines == [[b"a", b"b"]]
        third = lane.ask("reserve", b"c")
        link.answer(1, 2)
        assert len(link.pipelines) == 1, "what came meanwhile waits too"
        await gone(link, 2)
        link.answer(3)
        assert [await reply for reply in (first, second, third)] == [1, 2, 3]


async def test_enough_wait_for_nobody() -> None:
    clock = SetClock()
    async with connected(clock) as (lane, link, _):
        await asked_every(0.9 * COMPANY_WITHIN_S / FAST, lane, link, clock)
        replies = [lane.ask("reserve", b"a") for _ in range(ENOUGH)]
        await asyncio.sleep(0)
        assert link.pipelines == [[b"a"] * ENOUGH]
        replies += [lane.ask("reserve", b"b") for _ in range(ENOUGH)]
        link.answer(*[1] * ENOUGH)
        assert link.pipelines[1:] == [[b"b"] * ENOUGH]
        link.answer(*[1] * ENOUGH)
        assert sum([await reply for reply in replies]) == 2 * ENOUGH


async def test_where_calls_come_slowly_nobody_waits() -> None:
    clock = SetClock()
    async with connected(clock) as (lane, link, _):
        await asked_every(1.1 * COMPANY_WITHIN_S / FAST, lane, link, clock)
        reply = lane.ask("reserve", b"a")
        await asyncio.sleep(0)
        assert link.pipelines == [[b"a"]]
        link.answer(1)
        assert await reply == 1


async def test_a_lane_that_closes_leaves_nobody_waiting_for_company() -> None:
    clock = SetClock()
    async with connected(clock) as (lane, link, _):
        await asked_every(0.9 * COMPANY_WITHIN_S / FAST, lane, link, clock)
        reply = lane.ask("reserve", b"a")
        await lane.close()
        with pytest.raises(StoreUnavailable):
            await reply
        await asyncio.sleep(2 * COMPANY_WITHIN_S)
        assert link.pipelines == []


async def test_a_pipeline_is_bounded() -> None:
    async with connected() as (lane, link, _):
        for _ in range(MAX_BATCH + 1):
            lane.post(b"a")
        replies = [lane.ask("reserve", b"b") for _ in range(MAX_BATCH + 2)]
        await asyncio.sleep(0)
        assert link.pipelines == [[b"a"] * MAX_BATCH + [b"b"] * MAX_BATCH]
        link.answer(*[0] * 2 * MAX_BATCH)
        await gone(link, 2)
        assert link.pipelines[1] == [b"a", b"b", b"b"]
        link.answer(0, 1, 1)
        assert sum([await reply for reply in replies]) == 2


async def test_a_refused_command_fails_alone_and_a_refused_settlement_is_dropped() -> None:
    async with connected() as (lane, link, observer):
        lane.post(b"a")
        replies = [lane.ask("reserve", b"b"), lane.ask("reserve", b"c")]
        await asyncio.sleep(0)
        link.answer(CommandRefused("ERR one"), CommandRefused("ERR two"), 3)
        with pytest.raises(StoreUnavailable) as failure:
            await replies[0]
        assert failure.value.sent
        assert await replies[1] == 3
        assert observer.dropped == 1
        assert observer.failed == {"settle": 1, "reserve": 1}


@pytest.mark.parametrize("sent", [True, False])
async def test_a_failed_pipeline_fails_all_that_wait_and_posts_go_first_when_the_server_is_back(sent: bool) -> None:
    async with connected() as (lane, link, observer):
        lane.post(b"a")
        under_way = lane.ask("reserve", b"b")
        await asyncio.sleep(0)
        lane.post(b"c")
        queued = lane.ask("reserve", b"d")
        link.end(LinkFailed("away", sent=sent))
        for reply, was_sent in ((under_way, sent), (queued, False)):
            with pytest.raises(StoreUnavailable) as failure:
                await reply
            assert failure.value.sent is was_sent
        with pytest.raises(StoreUnavailable):
            lane.ask("reserve", b"e")
        lane.post(b"f")
        for _ in range(3):
            await asyncio.sleep(0)  # a first try at once, the next after a pause
        link.end(LinkFailed("away still", sent=False))
        for _ in range(3):
            await asyncio.sleep(0)
        assert link.pipelines[1:] == [[]]
        await gone(link, 3)
        link.answer()
        assert link.pipelines[2:] == [[], [b"a", b"c", b"f"]]
        with pytest.raises(StoreUnavailable):
            lane.ask("reserve", b"g")
        link.answer(1, 2, 3)
        assert lane.up
        assert observer.failed == {"reserve": 1, "settle": 1, "connect": 1}
        assert observer.dropped == 0


async def test_what_comes_for_somebody_who_has_left_goes_to_whom_they_named() -> None:
    async with connected() as (lane, link, _):
        came: list[Any] = []
        for reply in [lane.ask("reserve", b"a", late=came.append) for _ in range(3)]:
            reply.cancel()
        lane.ask("renew", b"b").cancel()
        await asyncio.sleep(0)
        link.answer([1], CommandRefused("ERR"), [3], [4])
        assert came[::2] == [[1], [3]]
        assert isinstance(came[1], StoreUnavailable)
        lane.ask("reserve", b"a", late=came.append).cancel()
        await asyncio.sleep(0)
        link.end(LinkFailed("away", sent=True))
        assert isinstance(came[3], StoreUnavailable)


async def test_what_is_asked_in_the_turn_of_closing_is_not_sent_any_more() -> None:
    async with connected() as (lane, link, _):
        reply = lane.ask("reserve", b"a")
        await lane.close()
        with pytest.raises(StoreUnavailable):
            await reply
        await asyncio.sleep(0)
        assert link.pipelines == []
        assert not lane.up


class Defective(Server):
    """A server with a defect that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1/0", [])

    async def connect(self, *, within_s: float) -> NoReturn:
        raise ZeroDivisionError(within_s)


async def test_a_defect_leaves_nobody_waiting_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    lane = lane_of(Link(Defective(), SystemClock()), Remembering())
    lane.start()
    replies: list[Any] = [lane.ask("reserve", b"") for _ in range(3)]
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*replies, return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) and not answer.sent for answer in answers)
    with pytest.raises(StoreUnavailable):
        lane.ask("reserve", b"")
    await lane.close()
    assert caplog.records
    for record in caplog.records:
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError
