"""What a call asks for or gives back, by the slot of a cluster: its tenant's part, and everybody's. No I/O."""

from collections.abc import Sequence
from functools import lru_cache

from gateway.admission.ledger.account import EVERYBODYS
from gateway.admission.limit import Limit
from gateway.admission.reservation import Reservation, Settlement
from gateway.admission.rules import REMEMBERED

EVERYBODYS_KEYS = f"gw:{{{EVERYBODYS.tag}}}:"


def of_reservation(reservation: Reservation) -> tuple[Reservation, Reservation | None, Sequence[bool]]:
    """Return the tenant's part, everybody's where there is one, and which of the limits are in that."""
    shared = _everybodys(reservation.limits)
    if shared is None:
        return reservation, None, ()
    everybodys = reservation.only(shared)
    everybodys.account = EVERYBODYS
    return reservation.only([not one for one in shared]), everybodys, shared


def of_settlement(settlement: Settlement) -> Sequence[Settlement]:
    """Return the tenant's part, which has what is booked, and everybody's where there is one."""
    shared = _everybodys(settlement.limits)
    if shared is None or settlement.account.tag == EVERYBODYS.tag:
        return (settlement,)
    return [_part(settlement, [one is mine for one in shared], everybodys=mine) for mine in (False, True)]


def _part(settlement: Settlement, kept: Sequence[bool], *, everybodys: bool) -> Settlement:
    charges = settlement.charges
    return Settlement(
        settlement.call_id,
        EVERYBODYS if everybodys else settlement.account,
        tuple([limit for limit, keep in zip(settlement.limits, kept, strict=True) if keep]),
        [delta for delta, keep in zip(settlement.deltas, kept, strict=True) if keep],
        None if everybodys else settlement.usage,
        settlement.uncertain,
        None if charges is None else [charge for charge, keep in zip(charges, kept, strict=True) if keep],
        settlement.ended_us,
        settlement.sent_us,
        settlement.refused and not everybodys,
        settlement.unended,
    )


@lru_cache(maxsize=REMEMBERED)
def _everybodys(limits: tuple[Limit, ...]) -> tuple[bool, ...] | None:
    """Return which of `limits` are everybody's; None: none is."""
    shared = tuple([limit.key.startswith(EVERYBODYS_KEYS) for limit in limits])
    return shared if any(shared) else None
