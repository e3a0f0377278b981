"""Slots that are handed from call to call: none is lost on the way, whoever leaves in whatever moment."""

import asyncio
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import SystemClock
from gateway.config import PoolEntry, Priority, ReplicaEntry
from gateway.errors import NoReplicaAvailable
from gateway.routing.loan import Loan
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica
from gateway.routing.turn import Turn


class Told:
    """What metrics would show."""

    def __init__(self) -> None:
        self.waits = 0
        self.refused: list[str] = []

    def waited(self, pool: str, priority: Priority, seconds: float) -> None:
        assert (pool, priority) == ("main", "normal")
        assert seconds >= 0
        self.waits += 1

    def waiting_refused(self, pool: str, reason: str) -> None:
        assert pool == "main"
        self.refused.append(reason)


def pool_of(replicas: int, *, most: int) -> Pool:
    urls = [f"http://10.0.0.{number}:8000" for number in range(replicas)]
    entry = PoolEntry.model_validate({"replicas": urls, "max_in_flight": most})
    return Pool("main", entry, random.Random(1), SystemClock())


def asked(pool: Pool, told: Told, tenant: str = "acme") -> asyncio.Task[Loan]:
    assert pool.room is not None
    turn = Turn(tenant, "normal", tokens=10, observer=told)
    return asyncio.create_task(turn.lend(pool, pool.room, tried=(), prefixes=(), left_s=math.inf))


async def lent(pool: Pool, told: Told, tenant: str, tried: Sequence[Replica]) -> Loan:
    """Return a loan that is taken, of a pool whether or not calls wait there."""
    if pool.room is not None:
        turn = Turn(tenant, "normal", tokens=10, observer=told)
        return await turn.lend(pool, pool.room, tried=tried, prefixes=(), left_s=math.inf)
    loan = pool.lend(tried=tried)
    loan.__enter__()
    return loan


def waiting(pool: Pool) -> int:
    return 0 if pool.room is None else len(pool.room)


async def test_a_call_that_leaves_as_it_is_handed_a_slot_gives_it_on() -> None:
    pool, told = pool_of(1, most=1), Told()
    holder = await asked(pool, told)
    second, third = asked(pool, told), asked(pool, told)
    await asyncio.sleep(0)
    holder.give_back()
    second.cancel()  # it has been told already, and does not know yet
    with pytest.raises(asyncio.CancelledError):
        await second
    (await third).give_back()
    assert (pool.replicas[0].in_flight, waiting(pool), told.waits) == (0, 0, 2)


async def test_a_slot_is_not_handed_to_a_call_that_is_leaving() -> None:
    pool, told = pool_of(1, most=1), Told()
    holder = await asked(pool, told)
    second, third = asked(pool, told), asked(pool, told)
    await asyncio.sleep(0)
    second.cancel()  # it still stands in the queue
    holder.give_back()
    (await third).give_back()
    assert second.cancelled()
    assert (pool.replicas[0].in_flight, waiting(pool)) == (0, 0)


async def test_a_slot_that_is_freed_wakes_one_call_only() -> None:
    pool, told = pool_of(1, most=1), Told()
    holder = await asked(pool, told)
    calls = [asked(pool, told) for _ in range(3000)]
    await asyncio.sleep(0)
    assert waiting(pool) == 1000
    assert told.refused == ["full"] * 2000
    holder.give_back()
    assert (waiting(pool), pool.replicas[0].in_flight) == (999, 1)
    pool.replicas[0].up = False
    pool.look()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, NoReplicaAvailable) for result in results) == 999
    (loan,) = [result for result in results if isinstance(result, Loan)]
    loan.give_back()
    assert pool.replicas[0].in_flight == 0


class Play:
    """A pool of two replicas, what happens to it, and the calls that are there."""

    def __init__(self) -> None:
        self.pool = pool_of(2, most=2)
        self.replicas = self.pool.replicas
        self.calls: list[asyncio.Task[Loan]] = []
        self._told = Told()

    def ask(self, number: int, *, tried: Sequence[Replica] = ()) -> None:
        self.calls.append(asyncio.create_task(lent(self.pool, self._told, f"tenant {number % 4}", tried)))

    def again(self, number: int) -> None:
        self.ask(number, tried=self.replicas[: number % 2 + 1])

    def leave(self, number: int) -> None:
        """A call ends, or is given up."""
        if self.calls:
            call = self.calls.pop(number % len(self.calls))
            if call.done() and not call.exception():
                call.result().give_back()
            else:
                call.cancel()

    def probe(self, number: int) -> None:
        self.replicas[number % 2].up = number % 4 > 1
        self.pool.look()

    def rest(self, number: int) -> None:
        self.pool.rest(self.replicas[number % 2], 60)

    def configure(self, number: int) -> None:
        most, queue = [(1, None), (2, None), (None, {"max_waiting": 3}), (None, None)][number % 4]
        urls = [replica.url for replica in self.pool.replicas]
        entry = PoolEntry.model_validate({"replicas": urls, "max_in_flight": most, "queue": queue})
        self.pool.configure(entry)

    def list(self, number: int) -> None:
        self.pool.list([ReplicaEntry(url=one.url) for one in self.replicas[number % 2 :]])

    def check(self) -> None:
        pool, room = self.pool, self.pool.room
        assert all(replica.in_flight >= 0 for replica in self.replicas)
        if room is not None:
            assert not room._queue or not pool.eligible(())
            assert not room._queue or pool.could_lend(())
            assert not [one for one in room._again if pool.eligible(one.tried)]


STEPS = {
    "ask": Play.ask,
    "again": Play.again,
    "leave": Play.leave,
    "probe": Play.probe,
    "rest": Play.rest,
    "configure": Play.configure,
    "list": Play.list,
}


@given(st.lists(st.tuples(st.sampled_from([*STEPS, "turn"]), st.integers(0, 99))))
def test_whatever_happens_no_slot_is_lost_and_nobody_waits_beside_a_free_one(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        on = Play()
        for step, number in steps:
            if step in STEPS:
                STEPS[step](on, number)
            else:
                await asyncio.sleep(0)
            on.check()
        for replica in on.replicas:
            replica.rests_until = 0.0
        on.pool.look()
        await emptied(on.calls)
        assert [replica.in_flight for replica in on.replicas] == [0, 0]
        assert waiting(on.pool) == 0
        assert on.pool.room is None or not on.pool.room._in_flight

    asyncio.run(play())


async def emptied(calls: list[asyncio.Task[Loan]]) -> None:
    """Have every call come to its replica and leave it."""
    while calls:
        await asyncio.sleep(0)
        call = calls.pop(0)
        if not call.done():
            calls.append(call)
        elif not call.exception():
            call.result().give_back()
    await asyncio.sleep(0)
