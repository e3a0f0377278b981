"""Tight limits against what was admitted: by the store, and by each gateway alone while the store was away.

While the store answers nobody exceeds a limit. A process that is alone admits its share of it (at least 1) in its life:
a calendar quota can be exceeded by as many shares as there were processes that were alone. A store
that fails over may lose the reservations of calls under way: as many more are granted until those end and are charged.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.evidence import Evidence, Violation, violated
from tests.chaos.gateways import Life
from tests.chaos.plans import CLIENTS, TIGHT, Tight

_US = 1_000_000
# Clocks are read at different moments; an engine sees a call end somewhat after its gateway.
_BLUR_US = 50_000


@dataclass(frozen=True)
class Admitted:
    """A call that was admitted between two moments, held its slot from the later one to `over_us`, and used tokens."""

    call_id: str
    life: Life
    from_us: int
    until_us: int
    over_us: int
    tokens: int

    @property
    def together(self) -> bool:
        """Whether the store admitted it, for certain."""
        return not any(
            since <= self.until_us + _BLUR_US and self.from_us - _BLUR_US <= until
            for since, until in (*self.life.unsure, *self.life.away)
        )

    @property
    def alone(self) -> bool:
        """Whether its gateway admitted it alone, for certain."""
        return any(since <= self.from_us and self.until_us <= until for since, until in self.life.alone)


def judge(evidence: Evidence, *, lease_s: float) -> Iterator[Violation]:
    """Yield limits that were exceeded by more than they may be."""
    longest_away_us = max((until - since for life in evidence.lives for since, until in life.away), default=0)
    for tight in TIGHT:
        found: list[str] = []
        for whose, calls in _admitted(evidence, tight).items():
            alone: defaultdict[tuple[str, int, int], list[Admitted]] = defaultdict(list)
            for call in calls:
                if call.alone:
                    alone[call.life.name, call.life.workers, call.life.processes].append(call)
            together = [call for call in calls if call.together]
            limit = tight.limit + _forgotten(tight, calls, failovers=evidence.failovers)
            # Leases that are not renewed in time count as free.
            if tight.measure == "concurrent" and longest_away_us > lease_s * _US / 2:
                limit += tight.limit
            found += _exceeded(f"{tight.tenant} {whose}", tight, limit, together)
            # Of a cluster one master may be away and others not: nobody knows of which it was.
            for (name, workers, processes), some in alone.items() if not evidence.two_steps else ():
                share = processes * tight.share(workers)
                # The one that alone is too large for a share takes all of it.
                if tight.measure == "tokens":
                    share += processes * max([call.tokens for call in some], default=0)
                found += _exceeded(f"{tight.tenant} {whose} alone in {name}", tight, share, some)
        yield from violated(f"limit {tight.rule} is kept", found)


def _forgotten(tight: Tight, calls: Sequence[Admitted], *, failovers: int) -> int:
    """Return what a store that fails over forgets at most: the calls under way, and what each reserves."""
    if tight.measure == "concurrent":  # no call lasts from one failover to the next
        return tight.limit * min(failovers, 1)
    return failovers * CLIENTS * (max((call.tokens for call in calls), default=0) if tight.measure == "tokens" else 1)


def _admitted(evidence: Evidence, tight: Tight) -> dict[str, list[Admitted]]:
    """Return the calls that a limit counts, for each key or for the tenant."""
    found: defaultdict[str, list[Admitted]] = defaultdict(list)
    for line in evidence.lines.values():
        fields, attempts = line.fields, evidence.by_id.get(line.inference_id)
        if fields["tenant"] != tight.tenant or fields["prompt_tokens"] is None or not attempts:
            continue
        last = evidence.charged_attempt(line)
        over_us = line.ended_us if last is None else min(line.ended_us, last.over_us)
        tokens = fields["prompt_tokens"] + fields["completion_tokens"]
        found[fields["key"] if tight.per_key else "all keys"].append(
            Admitted(line.inference_id, line.life, line.began_us, attempts[0].began_us, over_us, tokens)
        )
    return found


def _exceeded(whose: str, tight: Tight, limit: int, calls: Sequence[Admitted]) -> Iterator[str]:
    if tight.measure == "concurrent":
        yield from _at_once(whose, limit, calls)
    elif tight.window_s is None:
        used = sum(call.tokens if tight.measure == "tokens" else 1 for call in calls)
        if used > limit:
            yield f"{whose}: {used} of {limit}"
    else:
        yield from _in_a_window(whose, limit, tight.window_s, calls)


def _at_once(whose: str, limit: int, calls: Sequence[Admitted]) -> Iterator[str]:
    for call in calls:
        moment = call.until_us
        running = [one.call_id for one in calls if one.until_us <= moment < one.over_us - _BLUR_US or one is call]
        if len(running) > limit:
            yield f"{whose}: {len(running)} of {limit} at once: {running}"
            return


def _in_a_window(whose: str, limit: int, window_s: float, calls: Sequence[Admitted]) -> Iterator[str]:
    for first in calls:
        for last in calls:
            within = [c for c in calls if first.from_us <= c.from_us and c.until_us <= last.until_us]
            may = limit + limit * max(last.until_us - first.from_us, 0) / _US / window_s
            if len(within) > may + 1e-6:
                yield f"{whose}: {len(within)} where {may:.1f} may be: {[c.call_id for c in within]}"
                return
