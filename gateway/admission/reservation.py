"""What passes between admission and a store: what a call asks for, what it got, and how it ended. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gateway.admission.limit import MAX_COUNT, Level, Limit, Unit
from gateway.admission.rules import REMEMBERED
from gateway.calls.usage import Usage

# A record of a reservation lasts far longer than the time between two renewals, so that a settlement that an outage
# held back still finds its call. One that nobody renews is its gateway's that was killed.
RECORD_S = 3600

# How long a settlement stays for a reservation that may still come out of a connection that was given up.
SETTLED_S = 60


# Each of these is made for every call, and therefore not frozen, as other values are: that costs three times as much.
@dataclass(slots=True, eq=False)
class Settlement:
    """The end of a reservation: what to add to each limit (negative: given back); leases among `limits` end.

    `uncertain`: nobody saw the reservation's answer. It may still be on its way, and must then find itself settled.
    """

    call_id: str
    tag: str
    limits: tuple[Limit, ...]
    deltas: Sequence[int]
    uncertain: bool

    @property
    def record(self) -> str:
        """The key of the reservation's record."""
        return f"gw:{{{self.tag}}}:call:{self.call_id}"


@dataclass(slots=True, eq=False)
class Reservation:
    """What one call asks for, all or none: `costs[i]` of `limits[i]`.

    `tag` is the tenant's part of every key, so that all keys of a tenant live in one slot of a cluster.
    """

    call_id: str
    tag: str
    limits: tuple[Limit, ...]
    costs: tuple[int, ...]

    @property
    def record(self) -> str:
        """The key of this reservation's record."""
        return f"gw:{{{self.tag}}}:call:{self.call_id}"

    def settlement(self, usage: Usage | None, *, uncertain: bool = False) -> Settlement:
        """Return what settles this: the difference to `usage`, or everything given back where nothing was generated."""
        if usage is None:
            return Settlement(self.call_id, self.tag, self.limits, [-cost for cost in self.costs], uncertain)
        prompt, completion = usage.prompt, usage.completion
        used = {"concurrency": 0, "total": prompt + completion, "input": prompt, "output": completion}
        if prompt < 0 or completion < 0 or prompt + completion > MAX_COUNT:
            used = {unit: min(max(figure, 0), MAX_COUNT) for unit, figure in used.items()}
        limits, ended = _ended_by_usage(self.limits)
        costs = self.costs
        return Settlement(self.call_id, self.tag, limits, [used[unit] - costs[i] for i, unit in ended], uncertain)

    def enforced(self) -> "Reservation":
        """Return the part of this that can refuse."""
        return self.only([not limit.shadow for limit in self.limits])

    def only(self, kept: Sequence[bool]) -> "Reservation":
        """Return the part of this whose limits are `kept`."""
        return Reservation(
            self.call_id,
            self.tag,
            tuple([limit for limit, keep in zip(self.limits, kept, strict=True) if keep]),
            tuple([cost for cost, keep in zip(self.costs, kept, strict=True) if keep]),
        )


@dataclass(slots=True, eq=False)
class Answer:
    """Whether a reservation was taken, and the level of each of its limits before it."""

    admitted: bool
    levels: Sequence[Level]

    def fits(self, reservation: Reservation) -> list[bool]:
        """Return which limits `reservation` fits. Of an admitted one, those were charged; the others are shadows."""
        return [
            not limit.refuses(level[0], cost)
            for limit, cost, level in zip(reservation.limits, reservation.costs, self.levels, strict=True)
        ]


@lru_cache(maxsize=REMEMBERED)
def _ended_by_usage(limits: tuple[Limit, ...]) -> tuple[tuple[Limit, ...], tuple[tuple[int, Unit], ...]]:
    """Return which of `limits` change where a call ends with a usage: all but requests; where they stand, and units."""
    ended = [(i, limit) for i, limit in enumerate(limits) if limit.measure != "requests"]
    return tuple([limit for _, limit in ended]), tuple([(i, limit.unit) for i, limit in ended])
