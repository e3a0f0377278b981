"""A replica lent to one call: from its choice to the answer's end, and what that says of it."""

from typing import TYPE_CHECKING

from gateway.routing.replica import Replica

if TYPE_CHECKING:
    from gateway.routing.pool import Pool
    from gateway.routing.waiting_room import WaitingRoom


class Loan:
    """A replica that counts as in flight inside the block, and is told there what its call says of it.

    One that is `taken` counts before: whoever waited for it has it as soon as it is given.
    """

    __slots__ = ("_decides", "_from", "_on_trial", "_pool", "_replica", "_taken_at", "_tenant")

    def __init__(self, pool: "Pool", replica: Replica) -> None:
        self._pool = pool
        self._replica = replica
        self._decides = self._on_trial = False
        self._taken_at: float | None = None
        self._tenant: str | None = None
        self._from: WaitingRoom | None = None

    def take(self, room: "WaitingRoom", tenant: str) -> None:
        """Count from now on, as a call of `tenant` that came through `room`. The block must follow, or `give_back`."""
        self.__enter__()
        self._from = room
        self._tenant = tenant
        self._taken_at = self._pool.now()

    def give_back(self) -> None:
        """Count no longer; for who took it and does not come to the block."""
        self.__exit__()

    def __enter__(self) -> Replica:
        replica = self._replica
        if self._taken_at is None:
            replica.in_flight += 1
            if self._pool.held_back:
                self._decides = replica.breaker.lend(self._pool.now())
        return replica

    def __exit__(self, *_: object) -> None:
        self._replica.in_flight -= 1
        if self._decides:
            self._replica.breaker.give_back()
        room = self._pool.room
        if room is not None:
            now = self._pool.now()
            tenant = self._tenant if room is self._from else None  # another room does not count it
            room.freed(tenant, held_s=now - (self._taken_at or now))

    def began(self) -> None:
        """An answer has begun."""
        if self._decides:
            self._decides, self._on_trial = False, True
            if self._replica.breaker.close():
                self._pool.closed(self._replica)

    def ended_well(self) -> None:
        """The answer is whole."""
        self._replica.breaker.good += 1

    def fault(self, reason: str) -> None:
        """The engine, or the way to it, has failed this call. `reason` is for the log."""
        breaker, now = self._replica.breaker, self._pool.now()
        if self._decides:
            self._decides = False
            opened = breaker.reopen(now)
        elif self._on_trial:  # the answer that closed the breaker broke off
            opened = breaker.trip(now)
        else:
            opened = breaker.fault(now)
        if opened:
            self._pool.opened(self._replica, reason)

    def full(self, wait_s: float) -> None:
        """The engine is full, and said when to come again."""
        self._pool.rest(self._replica, wait_s)
