"""What a run amounts to: tables in, text out."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from bench.load import percentile
from tests.chaos.evidence import Evidence
from tests.chaos.quotas import left_reserved

_KINDS = {"ok": "whole answers", "client_gone": "streams that were left", "broken": "streams that broke"}


def report(evidence: Evidence) -> str:
    """Return the tables."""
    parts = (_calls(evidence), _ways(evidence), _faults(evidence), _books(evidence), _time(evidence))
    return "\n\n".join("\n".join(f"  {name:<58}{value:>12}" for name, value in part) for part in parts)


def _calls(evidence: Evidence) -> Iterator[tuple[str, str]]:
    yield "calls sent", f"{len(evidence.seen):,}"
    endings = Counter(f"{one.ending} {one.status} {one.code}" if one.code else f"{one.ending}" for one in evidence.seen)
    for name, count in sorted(endings.items()):
        yield f"  {name}", f"{count:,}"


def _ways(evidence: Evidence) -> Iterator[tuple[str, str]]:
    lines = [line.fields for line in evidence.lines.values()]
    elsewhere = [one for one in lines if one["fallback_for"] is not None]
    yield "calls turned to a fallback model", f"{len(elsewhere):,}"
    yield "  answered there", f"{sum(one['prompt_tokens'] is not None for one in elsewhere):,}"
    waits = [one["waited_ms"] for one in lines if one["waited_ms"] is not None]
    yield "calls that waited for a replica", f"{len(waits):,}"
    yield "  the longest (ms)", f"{max(waits, default=0):.0f}"
    for pool, count in sorted(Counter(one["pool"] for one in lines if one["prompt_tokens"] is not None).items()):
        yield f"answers of pool {pool}", f"{count:,}"


def _faults(evidence: Evidence) -> Iterator[tuple[str, str]]:
    yield "faults", str(len(evidence.faults))
    for name, count in sorted(Counter(fault.name for fault in evidence.faults).items()):
        yield f"  {name}", str(count)
    away = [(until - since) / 1e6 for life in evidence.lives for since, until in life.away]
    yield "times that a gateway left its store alone", str(len(away))
    yield "  the longest (s)", f"{max(away, default=0):.1f}"


def _books(evidence: Evidence) -> Iterator[tuple[str, str]]:
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    widest = 0
    for line in evidence.lines.values():
        attempt = evidence.charged_attempt(line)
        if line.fields["prompt_tokens"] is None or attempt is None:
            continue
        outcome = line.fields["outcome"]
        kind = outcome if line.fields["stream"] or outcome == "ok" else "not streamed, and left"
        sums = kinds[_KINDS.get(kind, kind)]
        sums["calls"] += 1
        sums["charged"] += line.fields["completion_tokens"]
        sums["generated"] += attempt.generated
        if outcome != "ok" and line.fields["stream"]:
            widest = max(widest, attempt.generated - line.fields["completion_tokens"])
    for name, sums in sorted(kinds.items()):
        yield f"{name}: calls", f"{sums['calls']:,}"
        yield "  output tokens that engines generated", f"{sums['generated']:,}"
        yield "  output tokens charged", f"{sums['charged']:,}"
    yield "most tokens of one stream's early end that were never seen", str(widest)
    ledger = Counter[str]()
    for figures in evidence.ledger.values():
        ledger.update(figures)
    for name in ("calls", "refused", "prompt_tokens", "completion_tokens", "estimated_tokens"):
        yield f"ledger: {name}", f"{ledger[name]:,}"
    unlogged = evidence.unlogged
    yield "calls whose gateway was killed before it told of them", f"{len(unlogged):,}"
    left = left_reserved(evidence)
    yield "  of them left reserved", f"{len(evidence.leftovers):,}"
    yield "    tokens reserved, at most", f"{sum(seen.call.reserved[1] for seen in left):,}"
    used = sum(a.prompt + a.generated for seen in left for a in evidence.by_seed[seen.call.number])
    yield "    tokens used", f"{used:,}"
    others = [seen for seen in unlogged if evidence.id_of(seen) not in evidence.leftovers]
    generated = sum(attempt.generated for seen in others for attempt in evidence.by_seed[seen.call.number])
    booked = ledger["completion_tokens"] - sum(
        line.fields["completion_tokens"] or 0 for line in evidence.lines.values()
    )
    yield "  output tokens of the others", f"{generated:,}"
    yield "    of them booked", f"{booked:,}"


def _time(evidence: Evidence) -> Iterator[tuple[str, str]]:
    own = [line.fields["overhead_ms"] for line in evidence.lines.values() if line.fields["overhead_ms"] is not None]
    yield "before an engine was asked (ms): p50", f"{percentile(own, 50):.1f}"
    yield "  p99", f"{percentile(own, 99):.1f}"
    yield "  worst", f"{max(own, default=0):.1f}"
