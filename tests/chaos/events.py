"""The stream of bookings: one event for each call, which together are the ledger, and each is its call's line."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tests.chaos.calls import Planned
from tests.chaos.engines import Attempt
from tests.chaos.evidence import Account, Evidence, Violation, violated

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def judge(evidence: Evidence) -> Iterator[Violation]:
    """Yield what is wrong with the events."""
    settled = [event for event in evidence.events if event["event"] == "settled"]
    times = Counter(event["call"] for event in settled)
    yield from violated("a call has one event", [f"{call}: {count}" for call, count in times.items() if count > 1])
    yield from violated("events add up to the ledger", _sums(evidence))
    yield from violated("an event says what its call's line says", _lines(evidence, settled))
    yield from violated("an event of a killed gateway says what its engine generated", _unlogged(evidence, settled))


def _sums(evidence: Evidence) -> Iterator[str]:
    sums: defaultdict[Account, Counter[str]] = defaultdict(Counter)
    for event in evidence.events:
        figures = sums[event["tenant"], event["key"], event["model"]]
        figures["calls" if event["event"] == "settled" else "refused"] += 1
        for name in _TOKENS:
            figures[name] += int(event[name])
        if event["source"] == "estimated":
            figures["estimated_tokens"] += int(event["prompt_tokens"]) + int(event["completion_tokens"])
    for account in {*sums, *evidence.ledger}:
        told, booked = sums[account], evidence.ledger.get(account, Counter())
        if +told != +booked:
            yield f"{account}: the ledger has {dict(+booked)}, its events {dict(+told)}"


def _lines(evidence: Evidence, settled: list[Mapping[str, str]]) -> Iterator[str]:
    for event in settled:
        line = evidence.lines.get(event["call"])
        if line is None or line.fields["prompt_tokens"] is None:
            continue
        logged = [str(line.fields[name]) for name in (*_TOKENS, "usage_source")]
        if logged != [event[name] for name in (*_TOKENS, "source")]:
            yield f"{event['call']}: {dict(event)}, logged {logged}"


def _unlogged(evidence: Evidence, settled: list[Mapping[str, str]]) -> Iterator[str]:
    for event in settled:
        attempts = evidence.by_id.get(event["call"])
        if event["call"] in evidence.lines or not attempts:
            continue
        seen, completion = evidence.by_call_id[event["call"]], int(event["completion_tokens"])
        # Whichever of them: an engine that stood still reads last what was given up long ago, and made good elsewhere.
        if not any(_may_be(completion, one, seen.call) for one in attempts):
            generated = ", ".join(f"{one.prompt}+{one.generated}" for one in attempts)
            yield f"{event['call']}: {dict(event)}; the engines: {generated}"


def _may_be(completion: int, attempt: Attempt, call: Planned) -> bool:
    """Whether an attempt, of which no line tells, can have been charged so many tokens."""
    if attempt.ended and not call.hurried:
        return completion == attempt.generated
    return completion <= (attempt.generated if call.stream else max(call.output, attempt.generated))
