"""On a cluster a call's keys are in two slots: its tenant's, and everybody's. Each part is a step of its own.

First the tenant's is taken, then everybody's; who is refused the second gives the first back. So nobody takes of what
is everybody's who has used up its own. Each part has a record under its own tag, by which it is taken once and settled
once; the ledger is written in the tenant's.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import date

from gateway.admission.ledger.posting import Posting
from gateway.admission.limit import Level, Limit
from gateway.admission.redis.parts import EVERYBODYS_KEYS, of_reservation, of_settlement
from gateway.admission.redis.store import RedisStore
from gateway.admission.reservation import Answer, Reservation, Settlement
from gateway.admission.store import StoreUnavailable

# Asked with others it has them all refused: so that their levels are told, and nothing is taken.
_NEVER = Limit("", "tokens", "day", 0, 0, f"{EVERYBODYS_KEYS}never")


class InTwoSteps:
    """A `Store`: that of a cluster, whose steps each have the keys of one slot."""

    may_forget = True

    def __init__(self, steps: RedisStore) -> None:
        self._steps = steps

    @property
    def up(self) -> bool:
        """Whether any master answered when it was last asked."""
        return self._steps.up

    @property
    def pending(self) -> int:
        """How many settlements have not reached their master yet: two, of a call with limits that are everybody's."""
        return self._steps.pending

    def start(self) -> None:
        """Begin background work."""
        self._steps.start()

    async def close(self) -> None:
        """Deliver what is pending, within a bound, and end background work."""
        await self._steps.close()

    async def reserve(self, reservation: Reservation) -> Answer:
        """Take both parts of `reservation`, or nothing.

        Raises:
            StoreUnavailable: there is no answer to one of them.
        """
        own, everybodys, shared = of_reservation(reservation)
        if everybodys is None:
            return await self._steps.reserve(own)
        answer = await self._steps.reserve(own)
        if not answer.admitted:
            return _joined(shared, answer, await self._look(everybodys))
        try:
            second = await self._steps.reserve(everybodys)
        except StoreUnavailable as failure:
            raise StoreUnavailable(sent=True) from failure  # the first part was taken
        except asyncio.CancelledError:
            self._give_back(own, answer)
            raise
        if not second.admitted:
            self._give_back(own, answer, refused=True)
        return _joined(shared, answer, second)

    def settle(self, settlement: Settlement) -> None:
        """Queue the parts of `settlement`."""
        for part in of_settlement(settlement):
            self._steps.settle(part)

    def note(self, settlement: Settlement) -> None:
        """Note the parts of `settlement`."""
        for part in of_settlement(settlement):
            self._steps.note(part)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend leases and records of both parts.

        Raises:
            StoreUnavailable: there is no answer to some.
        """
        await self._steps.renew([part for one in reservations for part in of_reservation(one)[:2] if part is not None])

    def ledger(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        """Yield what was booked, on all masters.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        return self._steps.ledger(tenant, since, until)

    async def _look(self, everybodys: Reservation) -> Answer:
        """Return the levels of limits of which nothing is taken."""
        asked = Reservation(
            everybodys.call_id, everybodys.account, (*everybodys.limits, _NEVER), (*everybodys.costs, 1)
        )
        try:
            levels = list((await self._steps.reserve(asked)).levels)[:-1]
        except StoreUnavailable:  # they refuse nobody, then: the call is refused as it is
            levels = [(0, 0)] * len(everybodys.limits)
        return Answer(admitted=False, levels=levels)

    def _give_back(self, own: Reservation, answer: Answer, *, refused: bool = False) -> None:
        settlement = own.only(answer.fits(own)).settlement(None)
        settlement.refused = refused and bool(own.account.model)
        self._steps.settle(settlement)


def _joined(shared: Sequence[bool], own: Answer, everybodys: Answer) -> Answer:
    """Return both answers as one, with the levels in the limits' order."""
    mine, theirs = iter(own.levels), iter(everybodys.levels)
    levels: list[Level] = [next(theirs if one else mine) for one in shared]
    return Answer(own.admitted and everybodys.admitted, levels)
