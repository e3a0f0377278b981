"""Calls that wait, and whose turn it is: deficit round robin over tenants, in tokens. No I/O, no clock.

In each round every tenant that waits may take as many tokens more, what it leaves of them it keeps for the next, and
one that no longer waits keeps nothing (Shreedhar and Varghese, 1995). So a tenant that floods only makes its own line
longer. Everything takes the same time however many wait.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    """A call: whose it is, and the tokens that it may take, 1 at least."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def cost(self) -> int:
        """What it may take."""


T = TypeVar("T", bound=Waits)


class _Line(Generic[T]):
    """One tenant's calls, first come first served, and the tokens that they may take in this round."""

    __slots__ = ("calls", "credit", "had_its_round")

    def __init__(self) -> None:
        self.calls: OrderedDict[T, None] = OrderedDict()
        self.credit = 0
        self.had_its_round = False


class DeficitRoundRobin(Generic[T]):
    """The lines of all tenants. What is taken out is told apart by identity, so a call may stand here once only."""

    __slots__ = ("_by_length", "_lines", "_longest", "_size", "_tokens")

    def __init__(self) -> None:
        self._lines: OrderedDict[str, _Line[T]] = OrderedDict()  # the first is the one whose turn it is
        self._size = self._tokens = 0
        # The tenants by how many calls of theirs wait, and the largest such number: to find the longest line at once.
        self._by_length: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._longest = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return (call for line in self._lines.values() for call in line.calls)

    def __contains__(self, call: T) -> bool:
        line = self._lines.get(call.tenant)
        return line is not None and call in line.calls

    def waiting(self, tenant: str) -> int:
        """Return how many calls of this tenant wait."""
        line = self._lines.get(tenant)
        return len(line.calls) if line else 0

    @property
    def longest(self) -> str:
        """The tenant with the most calls, of several the one that has had so many for the longest. There is one."""
        return next(iter(self._by_length[self._longest]))

    def last_of(self, tenant: str) -> T:
        """Return the call of this tenant that came last. There is one."""
        return next(reversed(self._lines[tenant].calls))

    def add(self, call: T) -> None:
        """Put a call at the end of its tenant's line; a tenant that did not wait has its turn after all others."""
        line = self._lines.get(call.tenant)
        if line is None:
            line = self._lines[call.tenant] = _Line()
        line.calls[call] = None
        self._size += 1
        self._tokens += call.cost
        self._note_length(call.tenant, len(line.calls), before=len(line.calls) - 1)

    def remove(self, call: T) -> None:
        """Take out a call, wherever it stands."""
        line = self._lines[call.tenant]
        del line.calls[call]
        if not line.calls:
            del self._lines[call.tenant]
        self._size -= 1
        self._tokens -= call.cost
        self._note_length(call.tenant, len(line.calls), before=len(line.calls) + 1)

    def pop(self) -> T:
        """Take out the call whose turn it is. There is one."""
        passed_over = 0
        while True:
            tenant, line = next(iter(self._lines.items()))
            if not line.had_its_round:
                line.had_its_round = True
                line.credit += self._quantum
            call = next(iter(line.calls))
            if call.cost <= line.credit:
                line.credit -= call.cost
                self.remove(call)
                return call
            line.had_its_round = False
            self._lines.move_to_end(tenant)
            passed_over += 1
            if passed_over == len(self._lines):
                self._skip_rounds()
                passed_over = 0

    def pop_of(self, may: Callable[[str], bool]) -> T | None:
        """Take out the call whose turn it is among those of tenants that `may`; what it takes counts as their own."""
        for tenant, line in self._lines.items():
            if may(tenant):
                call = next(iter(line.calls))
                line.credit -= call.cost
                self.remove(call)
                return call
        return None

    @property
    def _quantum(self) -> int:
        """What a round gives: the mean cost of what waits, so that a call is looked at about once before it goes."""
        return max(1, self._tokens // self._size)

    def _skip_rounds(self) -> None:
        """Let the rounds pass at once in which nobody could go."""
        quantum = self._quantum
        rounds = min(-((line.credit - next(iter(line.calls)).cost) // quantum) for line in self._lines.values()) - 1
        if rounds > 0:
            for line in self._lines.values():
                line.credit += rounds * quantum

    def _note_length(self, tenant: str, length: int, *, before: int) -> None:
        if before:
            alike = self._by_length[before]
            del alike[tenant]
            if not alike:
                del self._by_length[before]
        if length:
            self._by_length[length][tenant] = None
        if length > self._longest or (before == self._longest and before not in self._by_length):
            self._longest = length
