"""How fast slots become free while calls wait, and what that means for who comes then. Moments in, seconds out; no I/O.

Only the time counts in which somebody waits: what a pool does that has room says nothing of what it can.
"""

import math

# After so much of that time what was is mostly forgotten: it takes some answers to see a pace, and paces change.
_MEMORY_S = 15.0


class DrainRate:
    """One pool's. Moments are the clock's monotonic seconds."""

    __slots__ = ("_freed", "_lasted_s", "_since")

    def __init__(self) -> None:
        self._freed = 0.0  # slots; older ones count less
        self._lasted_s = 0.0
        self._since: float | None = None

    def note(self, now: float, *, waiting: bool) -> None:
        """Take note whether somebody waits from now on."""
        if self._since is not None:
            passed_s = max(0.0, now - self._since)
            self._freed *= math.exp(-passed_s / _MEMORY_S)
            self._lasted_s += passed_s
        self._since = now if waiting else None

    def freed(self, now: float) -> None:
        """Take note that a slot has become free."""
        if self._since is not None:
            self.note(now, waiting=True)
            self._freed += 1

    def wait_s(self, calls: int, now: float) -> float | None:
        """Return how long it takes until so many slots have become free; None where nobody can know."""
        self.note(now, waiting=self._since is not None)
        if not self._freed:
            return None
        seen_s = _MEMORY_S * -math.expm1(-self._lasted_s / _MEMORY_S)  # the time that what is counted stands for
        return calls * seen_s / self._freed
