"""The books against the engines' own accounts: call by call, and then the ledger to the token."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import add, le, sub
from typing import NamedTuple

from tests.chaos.client import Seen
from tests.chaos.engines import Attempt
from tests.chaos.evidence import Account, Evidence, Violation, violated
from tests.chaos.gateways import Line

# What an engine generates before it hears that nobody listens any more, or wrote before it died, may be unseen.
LEFT_WITHIN_US = 1_000_000
DIED_WITHIN_US = 100_000

# Settlements wait for company, and for the store or the disk of the journal.
_SETTLED_WITHIN_US = 200_000

# Ways in which the unsure calls of one account may be booked.
_MOST_SUMS = 1_000_000

_FIGURES = ("calls", "prompt_tokens", "completion_tokens", "estimated_tokens")


Figures = tuple[int, ...]


class Booking(NamedTuple):
    """What may stand in the ledger of one call: at least, and at most, of each figure."""

    least: Figures
    most: Figures


_NOTHING = Booking((0, 0, 0, 0), (0, 0, 0, 0))
_CALL_ALONE = Booking((1, 0, 0, 0), (1, 0, 0, 0))


def judge(evidence: Evidence) -> Iterator[Violation]:
    """Yield what is wrong with the books."""
    lines = [line for line in evidence.lines.values() if line.fields["prompt_tokens"] is not None]
    yield from violated(
        "a call is charged what its engine generated",
        [found for line in lines if (found := _wrongly_charged(evidence, line)) is not None],
    )
    yield from violated("what is generated leaves a trace", _untraced(evidence))
    yield from violated("the ledger is the sum of its calls", _ledger(evidence))
    yield from violated("refusals are in the ledger", _refusals(evidence))


def _wrongly_charged(evidence: Evidence, line: Line) -> str | None:
    attempt, seen = evidence.charged_attempt(line), evidence.call_of(line)
    fields = line.fields
    prompt, completion, source, outcome = (
        fields[name] for name in ("prompt_tokens", "completion_tokens", "usage_source", "outcome")
    )
    told = f"{line.inference_id} {outcome} {prompt}+{completion} by {source} (broken_by {fields['broken_by']})"
    if seen is not None and source == "estimated" and not seen.call.inputs[0] <= prompt <= seen.call.inputs[1]:
        return f"{told}: the estimated prompt is {seen.call.inputs}"
    if outcome == "client_gone" and not fields["stream"]:  # by the replica's pace, whether or not it had begun
        return None if source == "estimated" and (seen is None or completion <= seen.call.output) else told
    if attempt is None:
        return None if completion == 0 and source == "estimated" else f"{told}: no engine knows it"
    told += f"; the engine: {attempt.prompt}+{attempt.generated}, {'ended' if attempt.ended else 'cut'}"
    if outcome == "ok":
        right = (
            completion == attempt.generated and attempt.ended and (source == "estimated" or prompt == attempt.prompt)
        )
        return None if right and (source == "engine" or fields["stream"]) else told
    if source == "engine" and prompt > attempt.prompt:
        return told
    least = _least_charged(attempt, left=outcome == "client_gone" or fields["broken_by"] != "reset")
    return None if least <= completion <= attempt.generated else f"{told}: at least {least}"


def _least_charged(attempt: Attempt, *, left: bool) -> int:
    """Return how many tokens must have been seen of an attempt that the gateway left, or whose engine died."""
    until_us = attempt.over_us - (LEFT_WITHIN_US if left else DIED_WITHIN_US)
    return sum(at_us <= until_us for at_us in attempt.tokens_us)


def _untraced(evidence: Evidence) -> Iterator[str]:
    unlogged = {one.call.number for one in evidence.unlogged}
    for attempt in evidence.attempts:
        if attempt.generated and attempt.request_id not in evidence.lines and attempt.seed not in unlogged:
            yield f"{attempt.request_id}: {attempt.generated} tokens"


def _ledger(evidence: Evidence) -> Iterator[str]:
    booked = _of_lines(evidence)
    unsure = _unsure(evidence)
    for account in sorted({*booked, *evidence.ledger, *unsure}):
        told = tuple(evidence.ledger.get(account, Counter())[name] for name in _FIGURES)
        missing = tuple(map(sub, told, booked.get(account, _NOTHING.least)))
        if min(missing) < 0 or not _explained(missing, unsure.get(account, {}).values()):
            yield f"{account}: the ledger has {told}, {missing} more than its lines; unsure are {unsure.get(account)}"


def _of_lines(evidence: Evidence) -> Mapping[Account, Figures]:
    """Return what the lines of each account amount to."""
    sums: dict[Account, Figures] = defaultdict(lambda: _NOTHING.least)
    for line in evidence.lines.values():
        booking = _of_line(line)
        if booking != _NOTHING.least and line.inference_id not in evidence.leftovers and not _was_last(line):
            sums[line.account] = _add(sums[line.account], booking)
    return sums


def _of_line(line: Line) -> Figures:
    fields = line.fields
    if fields["prompt_tokens"] is not None:
        used: Figures = (fields["prompt_tokens"], fields["completion_tokens"])
        return (1, *used, sum(used) if fields["usage_source"] == "estimated" else 0)
    return _CALL_ALONE.least if fields["status"] == 400 and fields["attempts"] else _NOTHING.least


def _was_last(line: Line) -> bool:
    """Whether its gateway was killed so soon that its settlement may have been on its way still."""
    return line.ended_us > line.life.killed_us - _SETTLED_WITHIN_US


def _unsure(evidence: Evidence) -> Mapping[Account, dict[str, list[Booking]]]:
    """Return the calls of each account that may be in the ledger, and as what."""
    found: dict[Account, dict[str, list[Booking]]] = defaultdict(dict)
    for line in evidence.lines.values():
        booking = _of_line(line)
        if booking != _NOTHING.least and _was_last(line) and line.inference_id not in evidence.leftovers:
            found[line.account][line.inference_id] = [_NOTHING, Booking(booking, booking)]
    for line in evidence.lines.values():  # deadlines that passed: before the call was admitted, or after
        if (
            line.fields["error_code"] == "upstream_timeout"
            and line.fields["outcome"] == "refused"
            and line.fields["model"]
        ):
            found[line.account][line.inference_id] = [_NOTHING, _CALL_ALONE]
    leftovers = evidence.leftovers
    for seen in evidence.unlogged:
        call_id = evidence.id_of(seen)
        if call_id in leftovers or not seen.call.reserves:
            continue
        account = seen.call.tenant, seen.call.key, seen.call.model
        found[account][call_id or f"call {seen.call.number}"] = [_NOTHING, *_bookings(evidence, seen)]
    return found


def _bookings(evidence: Evidence, seen: Seen) -> Iterator[Booking]:
    least, most = seen.call.inputs
    if seen.call.wrong == "engine" or seen.call.deadline_ms is not None:
        yield _CALL_ALONE
    if (seen.call.leaves_s is not None or not evidence.by_seed[seen.call.number]) and seen.call.wrong is None:
        output = 0 if seen.call.stream else seen.call.output
        yield Booking((1, least, 0, least), (1, most, output, most + output))
    for attempt in evidence.by_seed[seen.call.number]:
        if attempt.ended:
            exact = 1, attempt.prompt, attempt.generated, 0
            yield Booking(exact, exact)
            if seen.call.stream:
                generated = attempt.generated
                yield Booking((1, least, generated, least + generated), (1, most, generated, most + generated))
        if seen.call.stream and (seen.call.hurried or not attempt.ended):
            used = max(attempt.prompt, most), attempt.generated
            yield Booking((1, 1, 0, 0), (1, *used, sum(used)))


def _explained(missing: Figures, unsure: Iterable[Sequence[Booking]]) -> bool:
    """Whether a choice of what each unsure call may be amounts to what is missing."""
    sums = {_NOTHING}
    for choices in unsure:
        sums = {
            Booking(least, _add(so_far.most, booking.most))
            for so_far, booking in product(sums, choices)
            if all(map(le, least := _add(so_far.least, booking.least), missing))
        }
        assert len(sums) <= _MOST_SUMS, "fewer calls for each key, or fewer gateways killed"
    return any(all(map(le, missing, one.most)) for one in sums)


def _refusals(evidence: Evidence) -> Iterator[str]:
    """Yield accounts whose refusals are not booked as often as they were told; a gateway alone books none."""
    told = Counter(line.account for line in evidence.lines.values() if line.fields["status"] == 429)
    alone = Counter(line.account for line in evidence.lines.values() if evidence.touches_away(line))
    unlogged = Counter((one.call.tenant, one.call.key, one.call.model) for one in evidence.unlogged)
    for account in sorted({*told, *evidence.ledger}):
        booked = evidence.ledger.get(account, Counter())["refused"]
        slack = alone[account] + unlogged[account]
        if abs(booked - told[account]) > slack:
            yield f"{account}: {booked} booked, {told[account]} told, {slack} of them unsure"


def _add(one: Figures, other: Figures) -> Figures:
    return tuple(map(add, one, other))
