"""Calls that wait, by class and tenant: who is next, and who makes way where there is no place. No I/O, no clock.

Between classes tokens are shared by weight, between the tenants of a class equally. No class and no tenant can keep
another from its share: not of what is served, and not of the places.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from gateway.config import Priority
from gateway.routing.deficit_round_robin import DeficitRoundRobin, Waits

# What each class gets where all wait: of 21 tokens the last one gets one, so that it is slow and never stands still.
WEIGHTS: Mapping[Priority, int] = {"high": 16, "normal": 4, "low": 1}


class WaitsInClass(Waits, Protocol):
    """A call, and its class."""

    @property
    def priority(self) -> Priority:
        """The class."""


T = TypeVar("T", bound=WaitsInClass)


class _Class(Generic[T]):
    """One class: its lines, and how far it is in tokens by its weight."""

    __slots__ = ("lines", "served", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.lines: DeficitRoundRobin[T] = DeficitRoundRobin()
        self.served = 0.0


class FairQueue(Generic[T]):
    """All calls that wait for one pool. It has no bound of its own: `displaced_by` says who leaves for whom."""

    __slots__ = ("_classes", "_reached", "_size")

    def __init__(self) -> None:
        # In the order of the weights: who has to make way is looked for from the end.
        self._classes: dict[Priority, _Class[T]] = {name: _Class(weight) for name, weight in WEIGHTS.items()}
        self._reached = 0.0  # how far the class was that was served last
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return (call for one in self._classes.values() for call in one.lines)

    def __contains__(self, call: T) -> bool:
        return call in self._classes[call.priority].lines

    def waiting(self, priority: Priority) -> int:
        """Return how many calls of this class wait; from any thread."""
        return len(self._classes[priority].lines)

    def waits(self, tenant: str) -> bool:
        """Whether a call of this tenant waits."""
        return any(one.lines.waiting(tenant) for one in self._classes.values())

    def add(self, call: T) -> None:
        """Put a call at the end of its tenant's line."""
        mine = self._classes[call.priority]
        if not mine.lines:  # it has saved nothing up while it did not wait
            behind = [one.served for one in self._classes.values() if one.lines]  # places may be kept from these
            mine.served = max(mine.served, min([self._reached, *behind]))
        mine.lines.add(call)
        self._size += 1

    def remove(self, call: T) -> None:
        """Take out a call, wherever it stands."""
        self._classes[call.priority].lines.remove(call)
        self._size -= 1

    def pop(self) -> T:
        """Take out the call whose turn it is. There is one."""
        next_class = min([one for one in self._classes.values() if one.lines], key=lambda one: one.served)
        return self._served(next_class, next_class.lines.pop())

    def pop_of(self, may: Callable[[str], bool]) -> T | None:
        """Take out the call whose turn it is among those of tenants that `may`; None: there is none."""
        for one in sorted([one for one in self._classes.values() if one.lines], key=lambda one: one.served):
            call = one.lines.pop_of(may)
            if call is not None:
                return self._served(one, call)
        return None

    def displaced_by(self, call: T) -> T | None:
        """Return which call has to leave where all places are taken and `call` comes; None: it has to go itself.

        A class has its weight's share of the places, one at least, and may use what others leave. In a class it is the
        tenant with the longest line whose last call leaves, for a tenant whose line is shorter even then.
        """
        mine, others = self._classes[call.priority], [*self._classes.values()]
        falls_short = len(mine.lines) < self._share(mine)
        for other in reversed(others):
            may_give = len(other.lines) > self._share(other)
            if other is not mine and may_give and (falls_short or other.weight < mine.weight):
                return other.lines.last_of(other.lines.longest)
        if not mine.lines:
            return None
        longest = mine.lines.longest
        if mine.lines.waiting(longest) <= mine.lines.waiting(call.tenant) + 1:
            return None
        return mine.lines.last_of(longest)

    def _served(self, one: _Class[T], call: T) -> T:
        self._size -= 1
        self._reached = one.served
        one.served += call.cost / one.weight
        return call

    def _share(self, one: _Class[T]) -> int:
        return max(1, self._size * one.weight // sum(WEIGHTS.values()))
