"""One call's waits for a replica of a pool with a waiting room: in all its attempts, for no longer than it may."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

from gateway.calls.prefix import Prefixes
from gateway.client.deadline import TOO_LATE
from gateway.config import Priority
from gateway.errors import DeadlinePassed, Draining, NoReplicaAvailable, QueueFull, Refusal, WaitedTooLong
from gateway.routing.loan import Loan
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica
from gateway.routing.waiting_room import Waiter, WaitingRoom

# How metrics name why a call that had to wait got no replica.
_REASONS: Mapping[type[Refusal], str] = {
    QueueFull: "full",
    WaitedTooLong: "too_long",
    DeadlinePassed: "deadline",
    Draining: "draining",
    NoReplicaAvailable: "no_replica",
}


class Observer(Protocol):
    """Who is told of waits, for metrics."""

    def waited(self, pool: str, priority: Priority, seconds: float) -> None:
        """A call waits for a replica no longer, however that ended."""

    def waiting_refused(self, pool: str, reason: str) -> None:
        """A call that had to wait for a replica did not get one; `reason` is a word of ours."""


class Turn:
    """A call whose turn has to come. `waited_s` is how long it has waited so far; None: it never had to."""

    __slots__ = ("_lent_by", "_observer", "_priority", "_reply", "_tenant", "_tokens", "waited_s")

    def __init__(self, tenant: str, priority: Priority, *, tokens: int, observer: Observer) -> None:
        self.waited_s: float | None = None
        self._tenant = tenant
        self._priority: Priority = priority
        self._tokens = max(1, tokens)
        self._observer = observer
        self._lent_by: Pool | None = None  # the last one that lent it a replica: it does not wait there anew
        self._reply: asyncio.Future[Loan | Refusal] | None = None

    async def lend(
        self, pool: Pool, room: WaitingRoom, *, tried: Collection[Replica], prefixes: Prefixes, left_s: float
    ) -> Loan:
        """Return a loan that is taken, which whoever gets it gives back. Its client waits for `left_s` at most.

        Raises:
            NoReplicaAvailable: none is up that it has not tried.
            QueueFull, WaitedTooLong: none has room, and none had in time.
            DeadlinePassed: none had while its client waits.
            Refusal: what `end` was told.
        """
        reply: asyncio.Future[Loan | Refusal] = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            reply,
            self._tenant,
            self._priority,
            cost=self._tokens,
            tried=tried,
            prefixes=prefixes,
            again=self._lent_by is pool or bool(tried),
        )
        try:
            loan = room.lend(waiter)
        except QueueFull:
            self._observer.waiting_refused(pool.name, "full")
            raise
        if loan is None:
            loan = await self._wait(pool, room, waiter, reply, left_s=left_s)
        self._lent_by = pool
        return loan

    def end(self, refusal: Refusal) -> None:
        """Refuse it if it waits now."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(refusal)

    async def _wait(
        self, pool: Pool, room: WaitingRoom, waiter: Waiter, reply: "asyncio.Future[Loan | Refusal]", *, left_s: float
    ) -> Loan:
        waited_s, began_at = self.waited_s or 0.0, pool.now()
        may_s = max(0.0, room.max_wait_s - waited_s)
        give_up = self._too_late if left_s <= may_s else self._too_long
        timer = asyncio.get_running_loop().call_later(min(may_s, left_s), give_up, room)
        self._reply = reply
        try:
            told = await reply
        except asyncio.CancelledError:
            if not reply.cancelled() and isinstance(given := reply.result(), Loan):
                given.give_back()
            raise
        finally:
            timer.cancel()
            self._reply = None
            room.leave(waiter)
            pool.vacate()
            now_s = pool.now() - began_at
            self.waited_s = waited_s + now_s
            self._observer.waited(pool.name, self._priority, now_s)
        if isinstance(told, Refusal):
            self._observer.waiting_refused(pool.name, _REASONS.get(type(told), "no_replica"))
            try:
                raise told
            finally:
                del told  # or it would hold this frame, which holds it
        return told

    def _too_late(self, _room: WaitingRoom) -> None:
        self.end(DeadlinePassed(TOO_LATE))

    def _too_long(self, room: WaitingRoom) -> None:
        self.end(room.too_long())
