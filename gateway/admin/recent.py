"""Counters as they were of late, so that an operator sees what has come to them. Moments and counts in; no I/O.

They are noted when somebody looks, at the page or by a scrape: what nobody looks at is not sampled.
"""

from collections import deque

from gateway.admin.numbers import Amiss

# How far back is shown, and how far apart what is kept for that is at least.
LATELY_S = 300.0
_APART_S = 10.0


class Recent:
    """Keeps what was counted in the last minutes. Moments are the clock's, in seconds since the epoch."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, Amiss]] = deque()

    def note(self, now_s: float, counted: Amiss) -> None:
        """Take note that so much was counted by now."""
        self._forget(now_s)
        if not self._noted or now_s - self._noted[-1][0] >= _APART_S:
            self._noted.append((now_s, counted))

    def since(self, now_s: float, counted: Amiss) -> tuple[float, Amiss] | None:
        """Return since when is known what came, within the last minutes, and what that is; None: nothing is."""
        self._forget(now_s)
        if not self._noted:
            return None
        at, before = self._noted[0]
        return at, counted - before

    def _forget(self, now_s: float) -> None:
        while self._noted and not 0 <= now_s - self._noted[0][0] <= LATELY_S:
            self._noted.popleft()
