"""The books against the engines' own accounts: call by call, and then the ledger to the token."""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.engines import Attempt
from tests.chaos.evidence import Evidence, Violation, violated
from tests.chaos.gateways import Line

# What an engine generates before it hears that nobody listens any more, or wrote before it died, may be unseen.
LEFT_WITHIN_US = 1_000_000
DIED_WITHIN_US = 100_000

# Settlements wait for company, and for the store or the disk of the journal.
_SETTLED_WITHIN_US = 200_000

# What an engine may say of a call that is wrong: behind comments with a status of 200.
_ENGINES_REFUSE = {"invalid_value", "context_length_exceeded"}

# Times of log lines are of so many.
_WRITTEN_TO_US = 1_000

# What a master took so long before it was lost, its replica may not have.
_COPIED_WITHIN_US = 1_000_000


def judge(evidence: Evidence) -> Iterator[Violation]:
    """Yield what is wrong with the books."""
    lines = [line for line in evidence.lines.values() if line.fields["prompt_tokens"] is not None]
    yield from violated(
        "a call is charged what its engine generated",
        [found for line in lines if (found := _wrongly_charged(evidence, line)) is not None],
    )
    yield from violated("what is generated leaves a trace", _untraced(evidence))
    yield from violated("what a killed gateway left under way is reserved", _unreserved(evidence))
    yield from violated("every call is in the ledger", _unbooked(evidence))
    yield from violated("nothing but calls is in the ledger", _strangers(evidence))
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


def _unreserved(evidence: Evidence) -> Iterator[str]:
    """Yield calls that were under way when their gateway was killed, and that the store knows nothing of."""
    known = {event["call"] for event in evidence.events} | evidence.leftovers.keys()
    for seen in evidence.unlogged:
        kills = evidence.life_of(seen).kills
        for attempt in evidence.by_seed[seen.call.number]:
            cut = any(_under_way(attempt, killed_us) for killed_us in kills)
            if attempt.request_id not in known and cut and not _forgotten(evidence, attempt):
                yield f"{attempt.request_id} of {seen.call.tenant}: {attempt.generated} tokens"


def _under_way(attempt: Attempt, killed_us: int) -> bool:
    """Whether its gateway was reading it when it was killed, and had admitted it long enough before."""
    settled = attempt.began_us < killed_us - _SETTLED_WITHIN_US and (attempt.cut_us or 0) >= killed_us
    return settled and any(killed_us - DIED_WITHIN_US < at_us < killed_us for at_us in attempt.tokens_us)


def _forgotten(evidence: Evidence, attempt: Attempt) -> bool:
    """Whether a master that was replaced may have taken its reservation with it."""
    return any(since - _COPIED_WITHIN_US < attempt.began_us < until for since, until in evidence.forgetful)


def _unbooked(evidence: Evidence) -> Iterator[str]:
    """Yield calls that should be in the ledger: each has an event, and those add up to it."""
    known = {event["call"] for event in evidence.events if event["event"] == "settled"} | evidence.leftovers.keys()
    for line in evidence.lines.values():
        if _booked(line) and line.inference_id not in known and not _may_be_lost(evidence, line):
            yield f"{line.inference_id} of {line.account} at {line.life.name}"


def _strangers(evidence: Evidence) -> Iterator[str]:
    """Yield what is in the ledger of calls that no engine took, and of none that there was."""
    nameless = Counter((one.call.tenant, one.call.key) for one in evidence.unlogged if evidence.id_of(one) is None)
    unlogged = {evidence.id_of(one) for one in evidence.unlogged}
    for event in evidence.events:
        line = evidence.lines.get(event["call"])
        if event["event"] != "settled" or event["call"] in unlogged or (line is not None and _may_be_booked(line)):
            continue
        whose = event["tenant"], event["key"]
        if line is None and nameless[whose]:
            nameless[whose] -= 1
        else:
            yield f"{dict(event)}"


def _booked(line: Line) -> bool:
    fields = line.fields
    refused = fields["error_code"] in _ENGINES_REFUSE and bool(fields["attempts"])
    return fields["prompt_tokens"] is not None or refused


def _may_be_booked(line: Line) -> bool:
    """Whether an engine took it; where a deadline passed, one was asked."""
    return _booked(line) or (line.fields["error_code"] == "upstream_timeout" and bool(line.fields["attempts"]))


def _may_be_lost(evidence: Evidence, line: Line) -> bool:
    """Whether its gateway was killed so soon that its settlement may have been on its way, or have to be sent again."""
    return any(
        killed_us - _SETTLED_WITHIN_US < line.ended_us <= killed_us + _WRITTEN_TO_US
        or any(
            since_us - _COPIED_WITHIN_US < line.ended_us <= killed_us < until_us
            for since_us, until_us in evidence.forgetful
        )
        for killed_us in line.life.kills
    )


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
