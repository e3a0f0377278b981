"""What a refused client is told: the error, its figures, and when to come back."""

import json
from typing import Any

import pytest

from gateway import errors
from gateway.admission.limit import Level, Limit
from gateway.admission.price import Price
from gateway.admission.refusals import refusal
from gateway.admission.reservation import Answer
from tests.limiting import NOON_US, SECOND, limit, reservation

REQUESTS = limit("bucket", 600, measure="requests", rule="key-requests")
TOKENS = limit("bucket", 1000, rule="key-tokens")
QUOTA = limit("month", 5000, rule="tenant-month")
DAILY_REQUESTS = limit("day", 50, measure="requests", rule="daily")
AT_ONCE = limit("lease", 64, rule="key-concurrency")


def refused(*asked: tuple[Limit, int, Level]) -> errors.TooMany:
    call = reservation("call", *[(one, cost) for one, cost, _ in asked])
    return refusal(call, Answer(admitted=False, levels=[level for *_, level in asked]), now_s=NOON_US / SECOND)


def error(refusal: errors.Refusal) -> dict[str, str]:
    body: dict[str, str] = json.loads(refusal.body())["error"]
    return body


def test_a_spent_bucket_says_when_the_call_fits() -> None:
    answer = refused((TOKENS, 150, (950, 1 * SECOND)))
    assert answer.status == 429
    assert error(answer) == {
        "code": "rate_limit_exceeded",
        "message": "Limit key-tokens is reached: 1000 tokens in 1m0s, 950 used or reserved, and this call "
        "reserves 150. Try again in 5s.",
        "error_type": "tokens",
        "type": "tokens",
    }
    assert answer.headers == {
        "Retry-After": "5",
        "retry-after-ms": "5000",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "50",
        "x-ratelimit-reset-tokens": "56s",
    }


def test_a_spent_bucket_of_requests_names_its_measure() -> None:
    answer = refused((REQUESTS, 1, (600, 0)))
    assert error(answer)["error_type"] == "requests"
    assert error(answer)["message"] == (
        "Limit key-requests is reached: 600 requests in 1m0s, 600 used. Try again in 100ms."
    )
    assert (answer.headers["Retry-After"], answer.headers["retry-after-ms"]) == ("1", "1000")
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(("used", "retry_after"), [(1001, "1"), (1500, "30"), (100_000, "60")])
def test_retry_after_stays_within_what_clients_honour(used: int, retry_after: str) -> None:
    assert refused((TOKENS, 0, (used, 0))).headers["Retry-After"] == retry_after


def test_calls_at_once_are_a_rate_without_headers_of_their_own() -> None:
    answer = refused((AT_ONCE, 1, (64, 0)), (REQUESTS, 1, (10, 0)))
    assert error(answer)["error_type"] == "concurrency"
    assert error(answer)["message"] == (
        "Limit key-concurrency is reached: 64 calls at once, 64 under way. Try again when one of them has ended."
    )
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "590"


def test_a_spent_quota_tells_clients_not_to_try_again_before_its_period_ends() -> None:
    answer = refused((QUOTA, 20, (4990, 36 * 3600 * SECOND)))
    assert error(answer) == {
        "code": "quota_exceeded",
        "message": "Quota tenant-month is spent: 5000 tokens per month (UTC), 4990 used or reserved, and this call "
        "reserves 20. It starts anew at 2026-12-01T00:00:00Z.",
        "error_type": "insufficient_quota",
        "type": "insufficient_quota",
    }
    assert answer.headers["x-should-retry"] == "false"
    assert not {"Retry-After", "retry-after-ms"} & set(answer.headers)
    assert answer.headers["x-ratelimit-reset-tokens"] == "36h0m0s"


def test_a_call_larger_than_a_whole_limit_can_never_be_admitted() -> None:
    answer = refused((TOKENS, 1001, (0, 0)))
    assert error(answer) == {
        "code": "request_exceeds_limit",
        "message": "This call needs 1001, more than limit key-tokens allows at all: 1000 tokens in 1m0s. "
        "Lower max_tokens or shorten the input.",
        "error_type": "insufficient_quota",
        "type": "insufficient_quota",
    }
    assert answer.headers["x-should-retry"] == "false"
    assert "Retry-After" not in answer.headers
    assert answer.headers["x-ratelimit-remaining-tokens"] == "1000"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"price": Price(1000, 4000, 100, 4000)},
            "1000 weighted tokens in 1m0s. Lower max_tokens or shorten the input.",
        ),
        ({"price": Price(1000, 0, 100, 0)}, "1000 weighted tokens in 1m0s. Shorten the input."),
        ({"price": Price(0, 2000, 0, 0)}, "1000 weighted tokens in 1m0s. Lower max_tokens."),
        ({"count": "input"}, "1000 input tokens in 1m0s. Shorten the input."),
        ({"count": "output"}, "1000 output tokens in 1m0s. Lower max_tokens."),
        (
            {"count": "output", "price": Price(0, 4000, 0, 4000)},
            "1000 weighted output tokens in 1m0s. Lower max_tokens.",
        ),
    ],
)
def test_units_are_named_and_advice_is_of_use(changes: dict[str, Any], says: str) -> None:
    answer = refused((limit("bucket", 1000, rule="credits", **changes), 1001, (0, 0)))
    assert error(answer)["message"] == f"This call needs 1001, more than limit credits allows at all: {says}"


def test_a_limit_of_nothing_says_so() -> None:
    answer = refused((limit("bucket", 0, measure="requests", rule="closed"), 1, (0, 0)))
    assert error(answer)["message"] == "Limit closed allows none of this: 0 requests in 1m0s."
    assert isinstance(answer, errors.RequestExceedsLimit)


def test_of_several_refusals_the_one_that_lasts_longest_is_told() -> None:
    rate, quota, never = (REQUESTS, 1, (600, 0)), (DAILY_REQUESTS, 1, (50, SECOND)), (TOKENS, 2000, (0, 0))
    slow = (limit("bucket", 10, measure="requests", rule="slow"), 1, (10, 0))
    assert "slow" in refused(rate, slow).message
    assert "slow" in refused(slow, rate).message
    assert isinstance(refused(rate, quota, slow), errors.QuotaExceeded)
    assert isinstance(refused(rate, never, quota), errors.RequestExceedsLimit)


def test_headers_show_the_refusing_limit_of_its_measure_and_the_tightest_of_the_other() -> None:
    tighter = limit("bucket", 60, rule="tighter")
    answer = refused((TOKENS, 100, (950, 0)), (tighter, 1, (58, 0)), (REQUESTS, 1, (1, 0)))
    assert answer.headers["x-ratelimit-remaining-tokens"] == "50"
    assert answer.headers["x-ratelimit-remaining-requests"] == "599"


def test_a_shadow_that_would_refuse_too_is_not_told() -> None:
    shadow = limit("month", 1, rule="trial", shadow=True)
    answer = refused((shadow, 5, (1, 10**12)), (REQUESTS, 1, (600, 0)))
    assert isinstance(answer, errors.RateLimited)
    assert "trial" not in answer.message
