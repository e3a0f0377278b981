"""Counts in this process's memory: for one process alone, and for limiting locally while the shared store is away.

The same behaviour as the shared store, without its failures. Every entry has an expiry, and what is expired is swept
when the table has doubled, so memory follows the number of keys in use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.admission.limit import MAX_COUNT, Level, Limit, period, refill
from gateway.admission.reservation import RECORD_S, SETTLED_S, Answer, Reservation, Settlement
from gateway.clock import Clock

_SWEEP_FROM = 4096


@dataclass(slots=True)
class _Count:
    """Of a bucket: used, and since when it has been refilling. Of a period: used, and its number."""

    used: int
    mark: int
    expires_us: int


@dataclass(slots=True)
class _Leases:
    """Who holds a slot, and until when."""

    until_us: dict[str, int] = field(default_factory=dict)
    expires_us: int = 0


@dataclass(slots=True)
class _Record:
    """A call's reservation: when it was made; settled ones are kept only where the reservation may still arrive."""

    reserved_us: int
    expires_us: int
    settled: bool = False


class MemoryStore:
    """A `Store` that is always up."""

    up = True
    pending = 0

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
        self._lease_us = round(lease_s * 1_000_000)
        self._states: dict[str, _Count | _Leases | _Record] = {}
        self._sweep_at = _SWEEP_FROM

    def start(self) -> None:
        """Nothing runs in the background: expiry is looked at when a key is."""

    async def close(self) -> None:
        """Nothing is pending."""

    async def reserve(self, reservation: Reservation) -> Answer:
        """Take all of `reservation`, or nothing. Never suspends."""
        now_us = self._now_us()
        self._sweep(now_us)
        levels = [self._level(limit, now_us) for limit in reservation.limits]
        if self._live(reservation.record, now_us) is not None:
            levels = [
                (max(used - cost, 0), clock) for (used, clock), cost in zip(levels, reservation.costs, strict=True)
            ]
            return Answer(admitted=True, levels=levels)
        asked = list(zip(reservation.limits, reservation.costs, levels, strict=True))
        if any(limit.refuses(used, cost) and not limit.shadow for limit, cost, (used, _) in asked):
            return Answer(admitted=False, levels=levels)
        for limit, cost, (used, clock_us) in asked:
            if not limit.refuses(used, cost):
                self._charge(limit, used + cost, clock_us, call_id=reservation.call_id, now_us=now_us)
        self._states[reservation.record] = _Record(now_us, now_us + RECORD_S * 1_000_000)
        return Answer(admitted=True, levels=levels)

    def settle(self, settlement: Settlement) -> None:
        """Apply `settlement` if its reservation is here and unsettled."""
        now_us = self._now_us()
        record = self._live(settlement.record, now_us)
        self._states.pop(settlement.record, None)
        if settlement.uncertain:
            self._states[settlement.record] = _Record(now_us, now_us + SETTLED_S * 1_000_000, settled=True)
        if not isinstance(record, _Record) or record.settled:
            return
        for limit, delta in zip(settlement.limits, settlement.deltas, strict=True):
            self._settle(limit, delta, settlement.call_id, reserved_us=record.reserved_us, now_us=now_us)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend leases and records. Never suspends."""
        now_us = self._now_us()
        for reservation in reservations:
            record = self._live(reservation.record, now_us)
            if not isinstance(record, _Record) or record.settled:
                continue
            record.expires_us = now_us + RECORD_S * 1_000_000
            for limit in reservation.limits:
                if limit.kind == "lease":
                    self._hold(limit.key, reservation.call_id, now_us)

    def _now_us(self) -> int:
        return round(self._clock.now() * 1_000_000)

    def _live(self, key: str, now_us: int) -> _Count | _Leases | _Record | None:
        state = self._states.get(key)
        return state if state is not None and state.expires_us > now_us else None

    def _level(self, limit: Limit, now_us: int) -> Level:
        state = self._live(limit.key, now_us)
        if limit.kind == "lease":
            if not isinstance(state, _Leases):
                return 0, 0
            state.until_us = {call: until for call, until in state.until_us.items() if until > now_us}
            return len(state.until_us), 0
        count = state if isinstance(state, _Count) else None
        if limit.kind == "bucket":
            if count is None or not limit.limit:
                return 0, 0
            used, at_us = refill(count.used, count.mark, now_us=now_us, limit=limit.limit, window_us=limit.window_us)
            return used, now_us - at_us
        number, end_us = period(limit.kind, now_us)
        return count.used if count is not None and count.mark == number else 0, end_us - now_us

    def _charge(self, limit: Limit, used: int, clock_us: int, *, call_id: str, now_us: int) -> None:
        """Write what is used; `clock_us` as in the level that was read at `now_us`."""
        if limit.kind == "lease":
            self._hold(limit.key, call_id, now_us)
            return
        mark = now_us - clock_us if limit.kind == "bucket" else period(limit.kind, now_us)[0]
        expires_us = now_us + limit.reset_after_us(used, clock_us)
        self._states[limit.key] = _Count(used, mark, expires_us)

    def _hold(self, key: str, call_id: str, now_us: int) -> None:
        leases = self._states.get(key)
        if not isinstance(leases, _Leases):
            leases = self._states[key] = _Leases()
        leases.until_us[call_id] = leases.expires_us = now_us + self._lease_us

    def _settle(self, limit: Limit, delta: int, call_id: str, *, reserved_us: int, now_us: int) -> None:
        if limit.kind == "lease":
            leases = self._states.get(limit.key)
            if isinstance(leases, _Leases):
                leases.until_us.pop(call_id, None)
            return
        if limit.kind != "bucket" and period(limit.kind, reserved_us)[0] != period(limit.kind, now_us)[0]:
            return  # reserved in a period that is over: its count limits nobody any more
        used, clock_us = self._level(limit, now_us)
        used = min(max(used + delta, 0), MAX_COUNT)
        self._charge(limit, used, clock_us, call_id=call_id, now_us=now_us)

    def _sweep(self, now_us: int) -> None:
        if len(self._states) >= self._sweep_at:
            self._states = {key: state for key, state in self._states.items() if state.expires_us > now_us}
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._states))
