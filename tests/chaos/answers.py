"""What clients saw against what engines said, and what may be told at all."""

from collections.abc import Iterator

from tests.chaos.client import Seen
from tests.chaos.evidence import Evidence, Violation, violated

# What docs/errors.md allows, under `on_store_failure: local`.
_CODES = {
    400: {"invalid_json", "invalid_value", "missing_field"},
    401: {"invalid_token"},
    404: {"model_not_found"},
    429: {"rate_limit_exceeded", "quota_exceeded", "request_exceeds_limit"},
    502: {"upstream_error", "upstream_timeout"},
    503: {"no_replica_available", "overloaded", "draining"},
}
_IN_STREAM = {"upstream_error", "upstream_timeout", "draining"}
# In a stream that had nothing but comments, also what else would have been a status.
_BEHIND_COMMENTS = _IN_STREAM | {"no_replica_available", "overloaded", "invalid_value", "context_length_exceeded"}
# That a worker has died its clients hear within so long.
_NOTICED_US = 100_000
_EXPECTED = {"json": {400}, "field": {400}, "model": {404}, "token": {401}, "engine": {400, 429, 502, 503}}


def judge(evidence: Evidence) -> Iterator[Violation]:
    """Yield what clients should not have seen."""
    seen = evidence.seen
    yield from violated(
        "every error is a documented one", [_named(evidence, one) for one in seen if not _documented(one)]
    )
    yield from violated(
        "a wrong call is told so",
        [
            _named(evidence, one)
            for one in seen
            if one.call.wrong and one.ending == "refused" and one.status not in _EXPECTED[one.call.wrong] | {503, 502}
        ],
    )
    yield from violated(
        "a wrong call is not answered",
        [_named(evidence, one) for one in seen if one.call.wrong and one.ending == "whole"],
    )
    yield from violated(
        "no stream ends well without saying that it is whole",
        [_named(evidence, one) for one in seen if one.ending == "silent"],
    )
    yield from violated(
        "what looks whole is whole",
        [found for one in seen if one.ending == "whole" and (found := _not_whole(evidence, one))],
    )
    yield from violated(
        "an answer says which model gave it",
        [_named(evidence, one) for one in seen if one.ending == "whole" and not _says_who(evidence, one)],
    )
    yield from violated(
        "what came is what the engine said", [_named(evidence, one) for one in seen if not _begins(one)]
    )
    yield from violated(
        "only a gateway that is killed cuts its clients off",
        [_named(evidence, one) for one in seen if one.ending == "cut" and not _may_cut(evidence, one)],
    )


def _named(evidence: Evidence, seen: Seen) -> str:
    what = f"{seen.status} {seen.code} {seen.ending} at {evidence.life_of(seen).name}"
    return f"call {seen.call.number} ({evidence.id_of(seen)}) {what}"


def _documented(seen: Seen) -> bool:
    if seen.ending == "told":
        return seen.code in (_IN_STREAM if seen.texts else _BEHIND_COMMENTS)
    return seen.status in {None, 200} or seen.code in _CODES.get(seen.status or 0, ())


def _not_whole(evidence: Evidence, seen: Seen) -> str | None:
    said = [seen.texts.get(index, "") for index in range(seen.call.parsed.choices)]
    ended = [attempt for attempt in evidence.by_id.get(seen.inference_id or "", ()) if attempt.ended]
    line = evidence.lines.get(seen.inference_id or "")
    if said != seen.call.texts or not ended:
        return _named(evidence, seen) + f": {said}"
    if seen.usage is not None and (seen.usage["prompt_tokens"], seen.usage["completion_tokens"]) != (
        ended[-1].prompt,
        ended[-1].generated,
    ):
        return _named(evidence, seen) + f": told {seen.usage}"
    if line is not None and line.fields["outcome"] != "ok":
        return _named(evidence, seen) + f": logged as {line.fields['outcome']}"
    return None


def _says_who(evidence: Evidence, seen: Seen) -> bool:
    """Whether it says so rightly. Behind a head that went out with the first comment it cannot."""
    line = evidence.lines.get(seen.inference_id or "")
    return line is None or seen.model in {None, line.fields["model"]}


def _begins(seen: Seen) -> bool:
    if not seen.texts:
        return True
    return all(whole.startswith(seen.texts.get(index, "")) for index, whole in enumerate(seen.call.texts))


def _may_cut(evidence: Evidence, seen: Seen) -> bool:
    """A connection that is kept may be closed, by a gateway that stops, while a call is on its way to it."""
    life = evidence.life_of(seen)
    stopped = life.ending in {"stopped", "orphaned"} and seen.status is None
    lost = any(seen.sent_us - _NOTICED_US <= at_us <= seen.over_us + _NOTICED_US for at_us in life.lost)
    return life.ending == "killed" or stopped or lost
