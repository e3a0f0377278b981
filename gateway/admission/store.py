"""What admission asks of a store of counts, whichever it is: memory of this process, or a server shared by all."""

from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Protocol

from gateway.admission.ledger.posting import Posting
from gateway.admission.reservation import Answer, Reservation, Settlement


class StoreUnavailable(Exception):
    """The store did not answer. When `sent`, it may have taken the reservation all the same.

    `refused`: it answered that it does not do such a thing, and never will.
    """

    def __init__(self, *, sent: bool, refused: bool = False) -> None:
        super().__init__("the limit store did not answer" if sent else "the limit store is away")
        self.sent = sent
        self.refused = refused


class Store(Protocol):
    """Counts per limit, for each call that is under way a record of its reservation, and the ledger of those settled.

    Everything is idempotent by `call_id`: a reservation or settlement that arrives twice counts once, and a settlement
    without a reservation changes nothing, unless it brings charges.
    """

    @property
    def up(self) -> bool:
        """Whether the store is believed to answer."""

    @property
    def pending(self) -> int:
        """How many settlements have not reached the store yet."""

    @property
    def may_forget(self) -> bool:
        """Whether a reservation that was taken may be lost: settlements are then to say what to charge without it."""

    def start(self) -> None:
        """Begin background work. Needs a running event loop."""

    async def close(self) -> None:
        """Deliver what is pending, within a bound, and end background work."""

    async def reserve(self, reservation: Reservation) -> Answer:
        """Take all of `reservation` in one step, or nothing when an enforced limit refuses. Shadow limits never refuse.

        A caller that is cancelled meanwhile has reserved nothing.

        Raises:
            StoreUnavailable: there is no answer.
        """

    def settle(self, settlement: Settlement) -> None:
        """Accept a settlement for delivery. Never fails and never waits."""

    def note(self, settlement: Settlement) -> None:
        """Have a call that runs without a reservation charged by `settlement`, if this process dies before it ends.

        Where nothing outlives the process this does nothing. It never fails and never waits.
        """

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend the leases and the records of calls that are still under way.

        Raises:
            StoreUnavailable: there is no answer.
        """

    def ledger(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        """Yield what was booked from `since` to `until`, both included; of one tenant, or of all.

        Raises:
            StoreUnavailable: it cannot be read.
        """
