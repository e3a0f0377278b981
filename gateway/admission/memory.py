"""Counts in this process's memory: for one process alone, and for limiting locally while the shared store is away.

The same behaviour as the shared store, without its failures. Every entry has an expiry, and what is expired is swept
when the tables have doubled, so memory follows the number of keys in use.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import date

from gateway.admission.ledger.account import booked
from gateway.admission.ledger.memory import MemoryLedger
from gateway.admission.ledger.posting import PAUSE_AFTER, Posting
from gateway.admission.limit import MAX_COUNT, Level, Limit, period, refill, same_period
from gateway.admission.reservation import RECORD_S, REFUSED_S, SETTLED_S, Answer, Reservation, Settlement
from gateway.clock import Clock

_SWEEP_FROM = 4096

_RECORD_US = RECORD_S * 1_000_000
_SETTLED_US = SETTLED_S * 1_000_000
_REFUSED_US = REFUSED_S * 1_000_000

# A call's reservation: when it was made, until when that is known, and which keys it was not charged. In place of the
# first: it is settled, which is known only where the reservation may still arrive; or it was refused.
_Record = tuple[int, int, tuple[str, ...]]
_SETTLED, _REFUSED = -1, -2
_UNKNOWN: _Record = (_SETTLED, 0, ())


# Of a bucket: used, and since when it has been refilling. Of a period: used, and its number. And the limit that was
# charged, by which it is known when nothing is used any more.
_Count = tuple[int, int, Limit]


class MemoryStore:
    """A `Store` that is always up. Without a `ledger` it books nothing."""

    up = True
    pending = 0
    may_forget = False

    def __init__(self, clock: Clock, *, lease_s: float, ledger: MemoryLedger | None = None) -> None:
        self._clock = clock
        self._ledger = ledger
        self._lease_us = round(lease_s * 1_000_000)
        self._counts: dict[str, _Count] = {}  # by key
        self._leases: dict[str, dict[str, int]] = {}  # by key: who holds a slot, and until when
        self._records: dict[str, _Record] = {}  # by call
        self._sweep_at = _SWEEP_FROM

    def start(self) -> None:
        """Nothing runs in the background: expiry is looked at when a key is."""

    async def close(self) -> None:
        """Nothing is pending."""

    async def reserve(self, reservation: Reservation) -> Answer:
        """Take all of `reservation`, or nothing. Never suspends."""
        now_us = self._now_us()
        if len(self._counts) + len(self._records) + len(self._leases) >= self._sweep_at:
            self._sweep(now_us)
        call_id = reservation.call_id
        levels: list[Level] = []
        charged: dict[str, _Count] = {}
        held: list[str] = []
        over: tuple[str, ...] = ()
        refused = False
        for limit, cost in zip(reservation.limits, reservation.costs, strict=True):
            used, clock_us, mark = self._read(limit, now_us)
            levels.append((used, clock_us))
            used += cost
            if used > limit.limit or not limit.limit:  # as `limit.refuses`, which a call would ask for every limit
                refused = refused or not limit.shadow
                over += (limit.key,)
            elif limit.kind == "lease":
                held.append(limit.key)
            else:
                charged[limit.key] = used, mark, limit
        record = self._record(call_id, now_us) if call_id in self._records else None
        if record is not None and record[0] != _REFUSED:
            return Answer(admitted=True, levels=_levels_before(reservation, levels, record[2]))
        if refused:
            if record is None:
                self._refuse(reservation, now_us)
            return Answer(admitted=False, levels=levels)
        self._counts.update(charged)
        for key in held:
            self._hold(key, call_id, now_us)
        self._records[call_id] = now_us, now_us + _RECORD_US, over
        return Answer(admitted=True, levels=levels)

    def note(self, settlement: Settlement) -> None:
        """Do nothing: these counts die with the process."""

    def settle(self, settlement: Settlement) -> None:
        """Apply `settlement` if its reservation is here and unsettled, or if it charges calls that have none."""
        now_us, call_id = self._now_us(), settlement.call_id
        reserved_us, expires_us, _ = self._records.pop(call_id, _UNKNOWN)
        if settlement.uncertain:
            self._records[call_id] = _SETTLED, now_us + _SETTLED_US, ()
        deltas, ended_us = settlement.deltas, min(settlement.ended_us or now_us, now_us)
        if reserved_us < 0 or expires_us <= now_us:
            if settlement.charges is None or (reserved_us == _SETTLED and expires_us > now_us):
                return
            deltas, reserved_us = _left(settlement.charges, settlement.limits, ended_us, now_us=now_us), ended_us
        for limit, delta in zip(settlement.limits, deltas, strict=True):
            if limit.kind == "lease":
                self._leases.get(limit.key, {}).pop(call_id, None)
            elif limit.kind == "bucket" or same_period(limit.kind, reserved_us, now_us):
                used, _, mark = self._read(limit, now_us)
                self._counts[limit.key] = min(max(used + delta, 0), MAX_COUNT), mark, limit
        if settlement.usage is not None and self._ledger is not None:
            self._ledger.book(settlement.account, booked(settlement.usage), now_us=ended_us)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend leases and records. Never suspends."""
        now_us = self._now_us()
        for reservation in reservations:
            record = self._record(reservation.call_id, now_us)
            if record is None or record[0] < 0:
                continue
            self._records[reservation.call_id] = record[0], now_us + _RECORD_US, record[2]
            for limit in reservation.limits:
                if limit.kind == "lease":
                    self._hold(limit.key, reservation.call_id, now_us)

    async def used(self, limits: Sequence[Limit]) -> list[int]:
        """Return what is used of each of `limits` now."""
        now_us = self._now_us()
        return [self._read(limit, now_us)[0] for limit in limits]

    async def ledger(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        """Yield what was booked."""
        if self._ledger is not None:
            postings = self._ledger.postings(tenant, since, until, now_us=self._now_us())
            for number, posting in enumerate(postings):
                yield posting
                if number % PAUSE_AFTER == 0:
                    await asyncio.sleep(0)

    def _refuse(self, reservation: Reservation, now_us: int) -> None:
        self._records[reservation.call_id] = _REFUSED, now_us + _REFUSED_US, ()
        if self._ledger is not None and reservation.account.model:
            self._ledger.book(reservation.account, [("refused", 1)], now_us=now_us)

    def _now_us(self) -> int:
        return round(self._clock.now() * 1_000_000)

    def _record(self, call_id: str, now_us: int) -> _Record | None:
        record = self._records.get(call_id)
        return record if record is not None and record[1] > now_us else None

    def _read(self, limit: Limit, now_us: int) -> tuple[int, int, int]:
        """Return the level of `limit`, and the mark that its count has when it is charged."""
        kind = limit.kind
        if kind == "lease":
            return self._held(limit.key, now_us), 0, 0
        used, mark, charged = self._counts.get(limit.key, (0, 0, limit))
        if charged is not limit and _over(used, mark, charged, now_us=now_us):
            used = 0  # where the same limit was charged, what follows finds that nothing is used
        if kind == "bucket":
            if not used or not limit.limit:
                return 0, 0, now_us
            used, mark = refill(used, mark, now_us, limit.limit, limit.window_us)
            return used, now_us - mark, mark
        number, end_us = period(kind, now_us)
        return used if mark == number else 0, end_us - now_us, number

    def _held(self, key: str, now_us: int) -> int:
        leases = self._leases.get(key)
        if leases is None:
            return 0
        for call_id in [call_id for call_id, until_us in leases.items() if until_us <= now_us]:
            del leases[call_id]
        return len(leases)

    def _hold(self, key: str, call_id: str, now_us: int) -> None:
        self._leases.setdefault(key, {})[call_id] = now_us + self._lease_us

    def _sweep(self, now_us: int) -> None:
        self._counts = {key: count for key, count in self._counts.items() if not _over(*count, now_us=now_us)}
        self._records = {call_id: record for call_id, record in self._records.items() if record[1] > now_us}
        self._leases = {key: leases for key, leases in self._leases.items() if self._held(key, now_us)}
        self._sweep_at = max(_SWEEP_FROM, 2 * (len(self._counts) + len(self._records) + len(self._leases)))


def _levels_before(reservation: Reservation, levels: Sequence[Level], over: tuple[str, ...]) -> list[Level]:
    """Return the levels before a call that was admitted then: what it was charged fits, and `over` does not."""
    return [
        (max(used, limit.limit - cost + 1) if limit.key in over else max(min(used, limit.limit) - cost, 0), clock_us)
        for limit, cost, (used, clock_us) in zip(reservation.limits, reservation.costs, levels, strict=True)
    ]


def _left(charges: Sequence[int], limits: Sequence[Limit], ended_us: int, *, now_us: int) -> list[int]:
    """Return what is left now of what was used then: a bucket has been refilling since."""
    return [
        refill(charge, ended_us, now_us, limit.limit, limit.window_us)[0]
        if limit.kind == "bucket" and limit.limit
        else charge
        for charge, limit in zip(charges, limits, strict=True)
    ]


def _over(used: int, mark: int, limit: Limit, *, now_us: int) -> bool:
    """Whether nothing is used any more of a count."""
    if limit.kind == "bucket":
        return mark + limit.reset_after_us(used, 0) <= now_us
    return mark != period(limit.kind, now_us)[0]
