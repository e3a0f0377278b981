"""Calls that were at replicas already and wait for others, first come first served. No I/O, no clock.

Each looks for a replica that it has not tried. In a storm there are a thousand, and somebody looks whenever a slot is
freed: so those that tried the same stand in one line, and only lines are looked at.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar

from gateway.routing.replica import Replica

T = TypeVar("T")
Tried = frozenset[Replica]


class SecondTries(Generic[T]):
    """The calls. What is taken out is told apart by identity, so a call may stand here once only."""

    __slots__ = ("_came", "_lines", "_tried")

    def __init__(self) -> None:
        self._lines: dict[Tried, OrderedDict[T, int]] = {}  # each call with its number, in the order of those
        self._tried: dict[T, Tried] = {}
        self._came = 0

    def __len__(self) -> int:
        return len(self._tried)

    def __iter__(self) -> Iterator[T]:
        return iter(self._tried)

    def __contains__(self, call: T) -> bool:
        return call in self._tried

    def add(self, call: T, tried: Collection[Replica]) -> None:
        """Put a call at the end."""
        self._came += 1
        of_it = self._tried[call] = frozenset(tried)
        self._lines.setdefault(of_it, OrderedDict())[call] = self._came

    def remove(self, call: T) -> None:
        """Take out a call, wherever it stands."""
        of_it = self._tried.pop(call)
        line = self._lines[of_it]
        del line[call]
        if not line:
            del self._lines[of_it]

    def pop(self, free: Sequence[Replica]) -> tuple[T, Sequence[Replica]] | None:
        """Take out the first call that one of `free` would do for, and return it with those that would."""
        best: tuple[int, T, Sequence[Replica]] | None = None
        for tried, line in self._lines.items():
            untried = [replica for replica in free if replica not in tried]
            call, number = next(iter(line.items()))
            if untried and (best is None or number < best[0]):
                best = number, call, untried
        if best is None:
            return None
        self.remove(best[1])
        return best[1:]

    def pop_in_vain(self, there_are: Collection[Replica]) -> Sequence[T]:
        """Take out all calls that have tried all of those."""
        gone = [call for tried, line in self._lines.items() if tried.issuperset(there_are) for call in line]
        for call in gone:
            self.remove(call)
        return gone
