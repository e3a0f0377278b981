"""Error codes, fields, reasons and figures that the documents state are the code's own, and none is left out."""

import json
import logging
import re
from collections.abc import Iterator
from typing import get_args

import pytest

from gateway import config, errors
from gateway.admission import reservation
from gateway.admission.journal import journal, queue
from gateway.admission.limit import Measure
from gateway.admission.redis import backlog, lane
from gateway.admission.settings import members, shelf, watcher
from gateway.calls import estimate, strict_json
from gateway.identity import claims, endpoint, grant, grants, header, keyset, peek, remembered, sources
from gateway.identity.refused import Reason, reason_of
from gateway.relay import events, exchange, failure, outcome
from gateway.relay.endings import Break, error_event
from gateway.revocations import revocation
from gateway.routing import health
from gateway.telemetry import logs, writer
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.record import Ending
from tests.documents import first_words, rows, section, text_of, words_of
from tests.unit.finished_calls import finished


def refusals(kind: type[errors.Refusal] = errors.Refusal) -> Iterator[type[errors.Refusal]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from refusals(inner)


def test_the_documented_errors_are_those_that_there_are() -> None:
    documented = {
        (int(row[0]), row[1].strip("`"), kind)
        for row in rows(section("errors", "Codes"))[1:]
        for kind in re.findall(r"`(\w+)`", row[2])
    }
    real = {(kind.status, kind.code, kind.error_type) for kind in refusals()}
    # The one whose type is decided by what was limited.
    real |= {(429, errors.RateLimited.code, measure) for measure in get_args(Measure)}
    assert documented == real


def test_the_headers_that_an_error_always_has_are_documented() -> None:
    told = {row[1].strip("`"): row[4] for row in rows(section("errors", "Codes"))[1:]}
    by_message = [kind for kind in refusals() if kind is not errors.RateLimited and kind.__module__ == errors.__name__]
    for kind in by_message:
        for name in kind("why").headers:
            assert name in told[kind.code], (kind, name)
    assert all(name in told["rate_limit_exceeded"] for name in errors.retry_headers(1))


def test_the_documented_error_body_is_the_real_one() -> None:
    block = re.search(r"```json\n(.*?)\n```", text_of("errors"), re.DOTALL)
    assert block
    told = json.loads(block[1])["error"]
    assert json.loads(errors.InvalidValue(told["message"], param=told["param"]).body())["error"] == told


def test_the_documented_error_event_is_the_real_one() -> None:
    told = re.search(r"^    data: (.*), …\}\}$", section("errors", "Errors inside a stream"), re.MULTILINE)
    assert told
    assert told[1].encode() in error_event("reset", at_boundary=True)


def test_every_break_of_a_stream_and_its_error_are_documented() -> None:
    endings = section("streams", "Endings")
    for reason in words_of(Break):
        code = json.loads(error_event(reason, at_boundary=True).removeprefix(b"data: "))["error"]["code"]  # type: ignore[arg-type]
        assert f"error event `{code}`" in endings


def test_the_documented_endings_are_those_of_a_record() -> None:
    endings = {word for row in rows(section("streams", "Endings"))[1:] for word in re.findall(r"`(\w+)`", row[2])}
    assert endings == set(words_of(Ending))


def test_the_documented_reasons_of_missing_usage_are_those_that_there_are() -> None:
    assert first_words("streams", "Estimates")[1:] == words_of(outcome.Missing)


def test_the_documented_reasons_of_early_ends_are_those_that_there_are() -> None:
    # What fails before anything is sent is an attempt.
    attempts_only = {"answer_timeout", "found_down"}
    assert set(first_words("metrics", "What ended an answer early")) == set(words_of(outcome.BrokenBy)) - attempts_only


def test_the_documented_kinds_of_engine_are_those_that_there_are() -> None:
    assert first_words("streams", "How usage is known")[1:] == words_of(
        config.PoolEntry.model_fields["engine"].annotation
    )


def test_the_documented_reasons_of_refused_tokens_are_those_that_there_are() -> None:
    common = {reason_of(kind("why")) for kind in (errors.MissingToken, errors.ExpiredToken)}
    assert set(first_words("identity", "Why a token was refused")) == common | set(words_of(Reason))


def test_the_documented_results_of_attempts_are_those_that_there_are() -> None:
    assert set(first_words("operations", "Metrics")) == {"answered", "refused", *words_of(failure.Reason)}


def test_the_documented_fields_of_log_lines_are_theirs() -> None:
    lines: list[str] = []
    AccessLog(config.Logging(), lines.append).record(finished())
    told = first_words("operations", "Logs")
    of_calls = list(json.loads(lines[0]))
    assert told[: len(of_calls)] == of_calls
    message = logs._LineFormatter(config.Logging(), 0).format(logging.makeLogRecord({"msg": "why"}))
    assert told[len(of_calls) :] == list(json.loads(message))


@pytest.mark.parametrize(
    ("document", "stated"),
    [
        ("errors", f"over {strict_json.MAX_CONTAINERS:,} lists"),
        ("streams", f"At {exchange.MAX_HELD_BYTES // 2**10} KiB without an event"),
        ("errors", f"no more than {exchange.MAX_HELD_BYTES // 2**10} KiB is read"),
        ("streams", f"an event over {events.MAX_EVENT_BYTES // 2**20} MiB"),
        ("streams", f"{events.MAX_EVENT_BYTES // 2**20} MiB are kept"),
        ("limits", f"and {estimate.TOKENS_PER_MEDIA} for each picture"),
        ("limits", f"{estimate.FEWEST_BYTES:g} to {estimate.MOST_BYTES:g} bytes"),
        ("limits", f"at most {100 * estimate.STEP:.1f} %, and by less below {estimate.FULL_STEP_BYTES // 2**10} KiB"),
        ("limits", f"divided by {estimate.MARGIN:g}"),
        ("limits", f"in memory, {backlog.MAX_WAITING:,} at most"),
        ("limits", f"waiting settlements get {lane.CLOSE_WITHIN_S:g} s"),
        ("limits", f"{queue.MAX_UNWRITTEN // 2**20} MiB wait in memory. A file takes {journal.MAX_BYTES // 2**30} GiB"),
        ("limits", f"within {reservation.RECORD_S // 86_400} days"),
        ("limits", f"{shelf.MAX_ENTRIES:,} overrides are the most"),
        ("limits", f"`for` is from 1s to {members.MAX_FOR_S // 86_400}d"),
        ("identity", f"{shelf.MAX_ENTRIES:,} revocations are the most"),
        ("identity", f"`for` is from 1s to {members.MAX_FOR_S // 86_400}d"),
        ("identity", f"has at most {revocation.MAX_REASON_CHARACTERS} characters"),
        ("identity", f"it waits {watcher.FIRST_WITHIN_S:g} s at most"),
        ("limits", f"it waits {watcher.FIRST_WITHIN_S:g} s at most"),
        ("operations", f"within {reservation.RECORD_S // 86_400} days"),
        ("limits", f"or alone within {lane.FLUSH_AFTER_S * 1000:g} ms"),
        ("limits", f"more than {lane.FAST / lane.COMPANY_WITHIN_S:g} calls a second"),
        ("limits", f"waits up to {lane.COMPANY_WITHIN_S * 1000:g} ms for others"),
        ("performance", f"From {lane.FAST / lane.COMPANY_WITHIN_S:g} calls/s of one process on"),
        ("performance", f"begins {lane.COMPANY_WITHIN_S * 1000:g} ms after the one before"),
        ("operations", f"delivered within {lane.CLOSE_WITHIN_S:g} s"),
        ("operations", f"written within {writer.CLOSE_WITHIN_S:g} s"),
        ("operations", f"200 within {health.PROBE_TIMEOUT_S:g} s"),
        ("configuration", f"healthy, within {health.PROBE_TIMEOUT_S:g} s"),
        ("identity", f"at most {header.MAX_TOKEN_CHARACTERS // 2**10} KiB of ASCII"),
        ("identity", f"at most {peek.MAX_PART_BYTES // 2**10} KiB each"),
        ("identity", f"1 to {claims.MAX_NAME_CHARACTERS} printable"),
        ("identity", f"At most {sources.MAX_DOCUMENT_BYTES // 2**20} MiB; redirects"),
        ("identity", f"not followed; {keyset.FETCH_TIMEOUT_S:g} s"),
        ("identity", f"Up to {remembered.CAPACITY:,} are"),
        ("identity", f"Up to {grants.CAPACITY:,} tokens are"),
        ("identity", f"for {grants.REFUSED_S:g} s it is refused"),
        ("identity", f"until {grant.MARGIN_S:g} s before"),
        ("identity", f"when {grant.RENEW_AT:.0%} of".replace("%", " %")),
        ("identity", f"{endpoint.MAX_WAITING:,} calls wait"),
        ("identity", f"up to {endpoint.MAX_ANSWER_BYTES // 2**10} KiB"),
    ],
)
def test_a_stated_figure_is_the_codes_own(document: str, stated: str) -> None:
    assert stated in " ".join(text_of(document).split())
