"""How many second tries a pool's calls get, and how far apart: a budget that ends storms. No I/O, no clock.

Each call adds a share of a retry and each second adds some, so retries are at most that share of the calls, and a few a
second besides. What ten seconds and a hundred calls add is saved up, for the moment in which a replica dies.
"""

import math
import random

from gateway.config import RetryBudget

FIRST_PAUSE_S = 0.025
LONGEST_PAUSE_S = 0.25

_SAVED_S = 10.0
_SAVED_CALLS = 100


class Retries:
    """One pool's. `calls` is how many were begun; whoever lends replicas counts them up."""

    __slots__ = ("_at", "_budget", "_chance", "_most", "_seen", "_there_are", "calls")

    def __init__(self, budget: RetryBudget, chance: random.Random, *, now: float) -> None:
        self.calls = 0
        self._chance = chance
        self._there_are = math.inf
        self._seen = 0
        self._at = now
        self.configure(budget)

    def configure(self, budget: RetryBudget) -> None:
        """Go by this budget from now on; of what is saved up, no more is kept than it allows."""
        self._budget = budget
        saved = _SAVED_CALLS * budget.share + _SAVED_S * budget.per_second
        self._most = max(saved, 1.0) if saved else 0.0
        self._there_are = min(self._there_are, self._most)

    def left(self, now: float) -> bool:
        """Whether there is one at least."""
        return self.saved_up(now) >= 1

    def saved_up(self, now: float) -> float:
        """Return how many there are."""
        budget = self._budget
        added = budget.share * (self.calls - self._seen) + budget.per_second * max(0.0, now - self._at)
        self._there_are = min(self._most, self._there_are + added)
        self._seen, self._at = self.calls, max(now, self._at)
        return self._there_are

    def take(self, now: float) -> bool:
        """Take one; return whether there was one."""
        if not self.left(now):
            return False
        self._there_are -= 1
        return True

    def pause_s(self, failures: int) -> float:
        """Return how long a call waits after so many failures: twice as long each time, jittered, and never long."""
        longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (failures - 1))
        return longest * self._chance.uniform(0.5, 1.0)
