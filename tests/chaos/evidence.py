"""Everything that is known when a run is over, from which it is judged; and what a violation is."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gateway.admission.rules import EVERYBODY
from tests.chaos.client import Seen
from tests.chaos.engines import Attempt
from tests.chaos.faults import Fault
from tests.chaos.gateways import Life, Line
from tests.chaos.topologies import StoreKey

# A master that was replaced may still be asked for so long.
_FOUND_WITHIN_S = 2.0

# Between a call's id and the number of the place where it is answered instead.
_FURTHER = "+"

# Whose calls: tenant, key, model.
Account = tuple[str, str, str]


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and what shows it."""

    invariant: str
    evidence: str


@dataclass(repr=False)  # it has megabytes, and asyncio shows what its main task returned to itself
class Evidence:
    """One run. `ledger` is what GET /admin/usage told; `gauges` those of all gateways that should be zero.

    `outdated` are gateways that go by a config which is there no more.
    """

    seen: list[Seen]
    lives: list[Life]
    attempts: list[Attempt]
    faults: list[Fault]
    ledger: dict[Account, Counter[str]]
    keys: list[StoreKey]
    gauges: dict[str, float]
    journals: dict[str, int]
    one_month: bool
    outdated: list[str] = field(default_factory=list)
    two_steps: bool = False  # whether what is everybody's is taken in a step of its own, as on a cluster
    by_id: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    by_seed: dict[int, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    by_call_id: dict[str, Seen] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for attempt in sorted(self.attempts, key=lambda one: one.began_us):
            self.by_id[attempt.request_id].append(attempt)
            self.by_seed[attempt.seed].append(attempt)
        self.by_call_id = {found: one for one in self.seen if (found := self.id_of(one)) is not None}
        self.lines = {line.inference_id: line for life in self.lives for line in life.lines}

    @property
    def events(self) -> list[Mapping[str, str]]:
        """All bookings, each by itself."""
        return [entry for key in self.keys for entry in key.entries]

    @property
    def failovers(self) -> int:
        """How often the store may have lost what it acknowledged last: reservations of calls under way among it."""
        return len(self.forgetful)

    @cached_property
    def forgetful(self) -> list[tuple[int, int]]:
        """When a master was harmed, until everybody had found the next (microseconds since the epoch)."""
        return [
            (round(fault.began_s * 1e6), round((fault.ended_s + _FOUND_WITHIN_S) * 1e6))
            for fault in self.faults
            if fault.name.startswith("master")
        ]

    def charged_attempt(self, line: Line) -> Attempt | None:
        """Return what the engine says of the attempt that a call's usage is of: the last at its last replica."""
        there = [one for one in self.by_id.get(line.inference_id, ()) if one.replica == line.fields["replica"]]
        return there[-1] if there else None

    def id_of(self, seen: Seen) -> str | None:
        """Return a call's id, as its client or else an engine was told."""
        if seen.inference_id is not None:
            return seen.inference_id
        attempts = self.by_seed.get(seen.call.number)
        return attempts[0].request_id if attempts else None

    def life_of(self, seen: Seen) -> Life:
        return next(life for life in self.lives if (life.place, life.number) == (seen.place, seen.life))

    def call_of(self, line: Line) -> Seen | None:
        """Return the call of a line, where its client or an engine knows its id."""
        return self.by_call_id.get(line.inference_id)

    def touches_away(self, line: Line) -> bool:
        """Whether a call's gateway may have been without its store during it, or have asked one that forgets."""
        life = line.life
        if any(since_us <= line.ended_us and line.began_us <= until_us for since_us, until_us in self.forgetful):
            return True
        return any(since <= line.ended_us and line.began_us <= until for since, until in (*life.unsure, *life.away))

    @cached_property
    def unlogged(self) -> list[Seen]:
        """Return the calls of killed processes that left no line: what became of them only the store may know."""
        killed = [one for one in self.seen if self._may_be_unlogged(one)]
        return [one for one in killed if self.id_of(one) not in self.lines]

    def _may_be_unlogged(self, seen: Seen) -> bool:
        life = self.life_of(seen)
        lost = any(since <= seen.over_us and seen.sent_us <= until for since, until in life.unsure)
        return life.ending == "killed" or lost

    @cached_property
    def leftovers(self) -> dict[str, str]:
        """Return the calls that the store knows as reserved still, and the tags of their tenants."""
        return {call_id: tag for call_id, tag in self._reserved if tag != EVERYBODY and _FURTHER not in call_id}

    @cached_property
    def left_of_everybodys(self) -> set[str]:
        """Return the calls that are reserved still of what is everybody's, where that is a step of its own."""
        return {call_id for call_id, tag in self._reserved if tag == EVERYBODY and _FURTHER not in call_id}

    @cached_property
    def further(self) -> list[str]:
        """Return the calls of which something is reserved still that they needed to be answered elsewhere."""
        return [call_id.partition(_FURTHER)[0] for call_id, _ in self._reserved if _FURTHER in call_id]

    @property
    def _reserved(self) -> Iterator[tuple[str, str]]:
        for key in self.keys:
            place, record, call_id = key.name.rpartition(":call:")
            if record and key.value.isdecimal():
                yield call_id, place.removeprefix("gw:{").removesuffix("}")


def shown(items: Iterable[object], most: int = 6) -> str:
    """Return some of what shows it, and how many there are."""
    found = list(items)
    return f"{len(found)}: " + "; ".join(map(str, found[:most])) + ("; …" if len(found) > most else "")


def violated(invariant: str, items: Iterable[object]) -> Iterator[Violation]:
    """Yield a violation where there are any `items`."""
    found = list(items)
    if found:
        yield Violation(invariant, shown(found))
