"""Whether calls may go to a replica, by how those before ended: a breaker that opens after faults. No I/O, no clock.

Closed, all calls go. Open, none do for a while; then one goes, and it decides: an answer that begins closes it again,
a fault opens it for as long again, and a call that says nothing of the replica (its client left) gives its turn back.
One that says nothing for as long (a whole answer takes its time) does not keep the replica: the next goes too.
"""

from collections import deque

from gateway.config import BreakerEntry


class Breaker:
    """One replica's. `good` is how many calls ended well; whoever lends the replica counts them up. None: never opens.

    Opens when the last `failures` faults fell within `window`, and no more calls than those ended well since the first
    of them: a busy replica that fails one call in a hundred stays.
    """

    __slots__ = ("_deciding", "_entry", "_faults", "_next_at", "_open_until", "good")

    def __init__(self, entry: BreakerEntry | None) -> None:
        self.good = 0
        self._entry = entry
        # When each of the last faults was, and how many calls had ended well until then.
        self._faults: deque[tuple[float, int]] = deque(maxlen=entry.failures if entry else 0)
        self._open_until: float | None = None
        self._deciding = 0
        self._next_at = 0.0  # when another may decide, while some do

    def configure(self, entry: BreakerEntry | None) -> None:
        """Go by this entry from now on. One that was open stays so, unless nothing opens it any more."""
        if entry == self._entry:
            return
        self._entry = entry
        self._faults = deque(self._faults, maxlen=entry.failures if entry else 0)
        if entry is None:
            self._open_until = None

    @property
    def open(self) -> bool:
        """Whether it opened, and no answer has begun since then that closed it."""
        return self._open_until is not None

    @property
    def opens_to_one_at(self) -> float | None:
        """When one call may go, of a breaker that is open."""
        if self._open_until is None or not self._deciding:
            return self._open_until
        return max(self._open_until, self._next_at)

    def lets(self, now: float) -> bool:
        """Whether a call may go to the replica now."""
        at = self.opens_to_one_at
        return at is None or now >= at

    def lend(self, now: float) -> bool:
        """Take note that a call goes; return whether it decides. Each that does ends in one of the three below."""
        if self._open_until is None or self._entry is None:
            return False
        self._deciding += 1
        self._next_at = now + self._entry.open_for
        return True

    def close(self) -> bool:
        """An answer to a call that decides has begun. Return whether that closed the breaker."""
        self._deciding -= 1
        was_open, self._open_until = self.open, None
        self._faults.clear()
        return was_open

    def give_back(self) -> None:
        """A call that decides ended, and nothing is known."""
        self._deciding -= 1

    def reopen(self, now: float) -> bool:
        """A call that decides met a fault. Return whether the breaker was closed before."""
        self._deciding -= 1
        return self.trip(now)

    def trip(self, now: float) -> bool:
        """Open for `open_for` from now. Return whether the breaker was closed before."""
        if self._entry is None:
            return False
        was_closed = self._open_until is None
        self._open_until = now + self._entry.open_for
        return was_closed

    def fault(self, now: float) -> bool:
        """A call that does not decide met a fault. Return whether that opened the breaker."""
        if self._entry is None or self._open_until is not None:
            return False
        self._faults.append((now, self.good))
        first_at, good_before = self._faults[0]
        enough = len(self._faults) == self._entry.failures
        if not enough or now - first_at > self._entry.window or self.good - good_before > self._entry.failures:
            return False
        return self.trip(now)
