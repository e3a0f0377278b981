"""Where calls wait for a pool whose replicas are all full, until one of them has room.

Whoever frees a slot, or brings a replica, has the room look; the slot is then taken for one call before anybody else
can have it. No I/O: the only time that passes here is until a replica that is held back may be lent again.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from gateway.calls.prefix import Prefixes
from gateway.config import Priority, QueueEntry
from gateway.errors import QueueFull, Refusal, WaitedTooLong
from gateway.routing.drain_rate import DrainRate
from gateway.routing.fair_queue import WEIGHTS, FairQueue
from gateway.routing.replica import Replica
from gateway.routing.second_tries import SecondTries

if TYPE_CHECKING:
    from gateway.routing.loan import Loan
    from gateway.routing.pool import Pool

# For how long a place is kept at most: a client's way there and back, and then some.
KEPT_S = 0.1
# And what part of the time for which it was used: of short calls a moment's emptiness costs more than it is worth.
KEPT_SHARE = 0.2

AT_CAPACITY = "Every server of this model is at capacity; retry after the time in Retry-After."


class Reply(Protocol):
    """How a call that waits is told; a future of asyncio's is one."""

    def done(self) -> bool:
        """Whether it was told, or nobody listens any more."""

    def set_result(self, result: "Loan | Refusal", /) -> None:
        """Tell it."""


class Waiter:
    """A call that waits. `reply` is told a loan that is taken, or why there is none.

    `again`: it was at a replica before, so that those who were not have let it pass already.
    """

    __slots__ = ("again", "cost", "prefixes", "priority", "reply", "tenant", "tried")

    def __init__(
        self,
        reply: Reply,
        tenant: str,
        priority: Priority,
        *,
        cost: int,
        tried: Collection[Replica] = (),
        prefixes: Prefixes = (),
        again: bool = False,
    ) -> None:
        self.reply = reply
        self.tenant = tenant
        self.priority: Priority = priority
        self.cost = cost
        self.tried = tried
        self.prefixes = prefixes
        self.again = again


class WaitingRoom:
    """One pool's. As long as somebody waits for the first time, no replica has room, but for what is kept.

    A place that a tenant leaves is kept for a moment if others would take it that have more than their share: whoever
    sends a call when the last one is answered would else find it taken each time. Who has less than its share may take
    what is kept.
    """

    __slots__ = ("_again", "_alarm", "_alarm_at", "_entry", "_in_flight", "_kept", "_pool", "_queue", "_rate")

    def __init__(self, pool: "Pool", entry: QueueEntry) -> None:
        self._pool = pool
        self._entry = entry
        self._queue: FairQueue[Waiter] = FairQueue()
        self._again: SecondTries[Waiter] = SecondTries()
        self._rate = DrainRate()
        self._in_flight: Counter[str] = Counter()  # by tenant
        self._kept: list[float] = []  # until when, as a heap: who had a place for longer leaves it for longer
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    def configure(self, entry: QueueEntry) -> None:
        """Go by this entry from now on. Those that wait already stay."""
        self._entry = entry

    def __len__(self) -> int:
        return len(self._queue) + len(self._again)

    @property
    def max_waiting(self) -> int:
        """How many calls may wait."""
        return self._entry.max_waiting

    @property
    def max_wait_s(self) -> float:
        """How long a call may wait, in all its attempts."""
        return self._entry.max_wait

    @property
    def waiting(self) -> Mapping[Priority, int]:
        """How many calls of each class wait; from any thread."""
        again = Counter([waiter.priority for waiter in [*self._again]])
        return {priority: self._queue.waiting(priority) + again[priority] for priority in WEIGHTS}

    def lend(self, waiter: Waiter) -> "Loan | None":
        """Lend a replica, taken, at once if nobody has to wait; None: the call waits from now on.

        Raises:
            NoReplicaAvailable: none is up that it has not tried.
            QueueFull: as many wait as may, and it has no claim on the place of one of them.
        """
        now, first = self._pool.now(), not self
        if waiter.again or not self._queue:
            eligible = self._pool.eligible(waiter.tried)
            if eligible:
                return self._take(waiter, eligible)
        if not self._pool.could_lend(waiter.tried):
            raise self._pool.refusal()
        if waiter.again:  # it had its turn, and gave its slot to the next: of such there can be as many, and more
            if len(self._again) >= self._entry.max_waiting:
                raise self._full()
            self._again.add(waiter, waiter.tried)
        else:
            self._find_place(waiter)
            self._queue.add(waiter)
        self._rate.note(now, waiting=True)
        if first:
            self._set_alarm(now)
        if self._kept:
            self.look()  # it may have a claim on what is kept
        return None

    def leave(self, waiter: Waiter) -> None:
        """Forget a call that waits no longer, if it is here."""
        if waiter in self._again:
            self._again.remove(waiter)
        elif waiter in self._queue:
            self._queue.remove(waiter)
        else:
            return
        self._rate.note(self._pool.now(), waiting=bool(self))

    def freed(self, tenant: str | None, *, held_s: float) -> None:
        """Take note that a call has left its replica, which it had for so long; of `tenant` if it came through here."""
        now = self._pool.now()
        self._rate.freed(now)
        if tenant is not None:
            self._in_flight[tenant] -= 1
            if not self._in_flight[tenant]:
                del self._in_flight[tenant]
            if self._queue and self._has_less_than_its_share(tenant) and not self._queue.waits(tenant):
                heappush(self._kept, now + min(KEPT_S, held_s * KEPT_SHARE))
        self.look()

    def look(self) -> None:
        """Lend what can be lent to those whose turn it is, and refuse those who would wait in vain."""
        pool, now = self._pool, self._pool.now()
        if self._again:
            for waiter in self._again.pop_in_vain(pool.lendable):
                self._end(waiter, ())
            while (found := self._again.pop(pool.eligible(()))) is not None:
                self._end(*found)
        while self._queue:
            eligible = pool.eligible(())
            if not eligible and pool.could_lend(()):
                break
            following = self._next(eligible)
            if following is None:
                break
            self._end(following, eligible)
        self._rate.note(now, waiting=bool(self))
        self._set_alarm(now)

    def too_long(self) -> WaitedTooLong:
        """Return the refusal of a call whose time here is over."""
        return WaitedTooLong(AT_CAPACITY, retry_after_s=self._retry_after_s())

    def _end(self, waiter: Waiter, eligible: Collection[Replica]) -> None:
        if waiter.reply.done():  # its client has just left, and nobody would give the replica back
            return
        if not eligible:
            waiter.reply.set_result(self._pool.refusal())
            return
        waiter.reply.set_result(self._take(waiter, [*eligible]))

    def _take(self, waiter: Waiter, eligible: Sequence[Replica]) -> "Loan":
        loan = self._pool.loan(eligible, waiter.prefixes)
        loan.take(self, waiter.tenant)
        self._in_flight[waiter.tenant] += 1
        return loan

    def _next(self, eligible: Sequence[Replica]) -> Waiter | None:
        """Take out who is next; None: what is free is kept for others than those that wait."""
        now = self._pool.now()
        while self._kept and self._kept[0] <= now:
            heappop(self._kept)
        free = sum(replica.most - replica.in_flight for replica in eligible)
        if not eligible or free > len(self._kept):
            return self._queue.pop()
        waiter = self._queue.pop_of(self._has_less_than_its_share)
        if waiter is not None:
            heappop(self._kept)
        return waiter

    def _has_less_than_its_share(self, tenant: str) -> bool:
        """Whether a tenant has fewer calls in flight than it would have if all that call now had as many."""
        places = sum(replica.most for replica in self._pool.lendable)
        tenants = len(self._in_flight) + (tenant not in self._in_flight)
        return self._in_flight.get(tenant, 0) * tenants < places

    def _find_place(self, waiter: Waiter) -> None:
        if len(self._queue) < self._entry.max_waiting:
            return
        displaced = self._queue.displaced_by(waiter) if self._entry.max_waiting else None
        if displaced is None:
            raise self._full()
        self._queue.remove(displaced)
        if not displaced.reply.done():
            displaced.reply.set_result(self._full())

    def _full(self) -> QueueFull:
        return QueueFull(AT_CAPACITY, retry_after_s=self._retry_after_s())

    def _retry_after_s(self) -> float:
        """Return how long it takes at the pace of late until all that wait have gone, and then one more."""
        wait_s = self._rate.wait_s(len(self) + 1, self._pool.now())
        return self._entry.max_wait if wait_s is None else wait_s  # by then those that wait have gone, somewhere

    def _set_alarm(self, looked_at: float) -> None:
        """Look again when a replica that is held back may be lent by the time alone: nobody else would say so.

        What has become so since the last look counts, too. So does a place that is kept for nobody any more.
        """
        at = self._pool.lends_more_at(looked_at) if self._pool.held_back and self else math.inf
        if self._queue and self._kept:
            at = min(at, self._kept[0])
        if at == self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = at
        if at < math.inf:
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, at - self._pool.now()), self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        self.look()
