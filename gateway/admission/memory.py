"""Counts in this process's memory: for one process alone, and for limiting locally while the shared store is away.

The same behaviour as the shared store, without its failures. Every entry has an expiry, and what is expired is swept
when the tables have doubled, so memory follows the number of keys in use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.limit import MAX_COUNT, Level, Limit, period, refill
from gateway.admission.reservation import RECORD_S, SETTLED_S, Answer, Reservation, Settlement
from gateway.clock import Clock

_SWEEP_FROM = 4096

_RECORD_US = RECORD_S * 1_000_000
_SETTLED_US = SETTLED_S * 1_000_000

# A call's reservation: when it was made, and until when that is known. Of a settled one, which is kept only where the
# reservation may still arrive, the first is None.
_Record = tuple[int | None, int]


@dataclass(slots=True, eq=False)
class _Count:
    """Of a bucket: used, and since when it has been refilling. Of a period: used, and its number."""

    used: int
    mark: int
    limit: Limit

    def over(self, now_us: int) -> bool:
        """Whether nothing is used any more."""
        if self.limit.kind == "bucket":
            return self.mark + self.limit.reset_after_us(self.used, 0) <= now_us
        return self.mark != period(self.limit.kind, now_us)[0]


class MemoryStore:
    """A `Store` that is always up."""

    up = True
    pending = 0

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
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
        fitting: list[tuple[Limit, int, int]] = []
        refused = False
        for limit, cost in zip(reservation.limits, reservation.costs, strict=True):
            used, clock_us, mark = self._read(limit, now_us)
            levels.append((used, clock_us))
            if not limit.refuses(used, cost):
                fitting.append((limit, used + cost, mark))
            elif not limit.shadow:
                refused = True
        if call_id in self._records and self._record(call_id, now_us) is not None:
            before = zip(levels, reservation.costs, strict=True)
            return Answer(True, [(max(used - cost, 0), clock_us) for (used, clock_us), cost in before])
        if refused:
            return Answer(False, levels)
        for limit, used, mark in fitting:
            if limit.kind == "lease":
                self._hold(limit.key, call_id, now_us)
            else:
                self._write(limit, used, mark)
        self._records[call_id] = now_us, now_us + _RECORD_US
        return Answer(True, levels)

    def settle(self, settlement: Settlement) -> None:
        """Apply `settlement` if its reservation is here and unsettled."""
        now_us, call_id = self._now_us(), settlement.call_id
        record = self._record(call_id, now_us)
        self._records.pop(call_id, None)
        if settlement.uncertain:
            self._records[call_id] = None, now_us + _SETTLED_US
        reserved_us = record[0] if record is not None else None
        if reserved_us is None:
            return
        for limit, delta in zip(settlement.limits, settlement.deltas, strict=True):
            if limit.kind == "lease":
                self._leases.get(limit.key, {}).pop(call_id, None)
            elif limit.kind == "bucket" or period(limit.kind, reserved_us) == period(limit.kind, now_us):
                used, _, mark = self._read(limit, now_us)
                self._write(limit, min(max(used + delta, 0), MAX_COUNT), mark)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend leases and records. Never suspends."""
        now_us = self._now_us()
        for reservation in reservations:
            record = self._record(reservation.call_id, now_us)
            if record is None or record[0] is None:
                continue
            self._records[reservation.call_id] = record[0], now_us + _RECORD_US
            for limit in reservation.limits:
                if limit.kind == "lease":
                    self._hold(limit.key, reservation.call_id, now_us)

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
        count = self._counts.get(limit.key)
        if count is not None and count.limit is not limit and count.over(now_us):
            count = None  # by the limit that was charged; by the same limit, what follows finds that nothing is used
        if kind == "bucket":
            if count is None or not limit.limit:
                return 0, 0, now_us
            used, at_us = refill(count.used, count.mark, now_us, limit.limit, limit.window_us)
            return used, now_us - at_us, at_us
        number, end_us = period(kind, now_us)
        return count.used if count is not None and count.mark == number else 0, end_us - now_us, number

    def _write(self, limit: Limit, used: int, mark: int) -> None:
        count = self._counts.get(limit.key)
        if count is None:
            self._counts[limit.key] = _Count(used, mark, limit)
        else:
            count.used, count.mark, count.limit = used, mark, limit

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
        self._counts = {key: count for key, count in self._counts.items() if not count.over(now_us)}
        self._records = {call_id: record for call_id, record in self._records.items() if record[1] > now_us}
        self._leases = {key: leases for key, leases in self._leases.items() if self._held(key, now_us)}
        self._sweep_at = max(_SWEEP_FROM, 2 * (len(self._counts) + len(self._records) + len(self._leases)))
