"""The x-ratelimit headers that clients pace themselves by."""

import pytest

from gateway.admission.headers import go_duration, go_window, ratelimit_headers
from tests.limiting import SECOND, limit

REQUESTS = limit("bucket", 600, measure="requests")
TOKENS = limit("bucket", 1000)
QUOTA = limit("day", 100_000)


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (120_000, "120ms"),
        (999_000, "999ms"),
        (999_001, "1s"),
        (1 * SECOND, "1s"),
        (1_000_001, "2s"),
        (59 * SECOND, "59s"),
        (60 * SECOND, "1m0s"),
        (360 * SECOND, "6m0s"),
        (3599 * SECOND, "59m59s"),
        (86_400 * SECOND, "24h0m0s"),
        (2_678_400 * SECOND - 1, "744h0m0s"),
    ],
)
def test_durations_are_written_as_go_writes_them_and_never_too_short(microseconds: int, text: str) -> None:
    assert go_duration(microseconds) == text


def test_each_measure_shows_its_limit_what_remains_after_the_call_and_when_all_is_back() -> None:
    assert ratelimit_headers((REQUESTS, TOKENS), [1, 150], [(0, 0), (100, 0)]) == {
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "599",
        "x-ratelimit-reset-requests": "100ms",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "750",
        "x-ratelimit-reset-tokens": "15s",
    }


@pytest.mark.parametrize(("quota_used", "shown"), [(0, "1000"), (99_500, "100000")])
def test_of_several_limits_of_a_measure_the_one_with_the_least_remaining_is_shown(quota_used: int, shown: str) -> None:
    for limits, levels in [
        ((TOKENS, QUOTA), [(0, 0), (quota_used, 60 * SECOND)]),
        ((QUOTA, TOKENS), [(quota_used, 60 * SECOND), (0, 0)]),
    ]:
        headers = ratelimit_headers(limits, [100, 100], levels)
        assert headers["x-ratelimit-limit-tokens"] == shown


def test_what_remains_is_never_negative() -> None:
    headers = ratelimit_headers((TOKENS,), [0], [(1500, 0)])
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-reset-tokens"] == "1m30s"


def test_a_calendar_quota_resets_when_its_period_ends() -> None:
    assert ratelimit_headers((QUOTA,), [1], [(5, 3600 * SECOND)])["x-ratelimit-reset-tokens"] == "1h0m0s"


def test_shadows_and_calls_at_once_have_no_headers() -> None:
    limits = (limit("bucket", 1, shadow=True), limit("lease", 1))
    assert ratelimit_headers(limits, [1, 1], [(0, 0), (0, 0)]) == {}


def test_of_a_quota_that_nobody_uses_all_is_there_now() -> None:
    assert ratelimit_headers((QUOTA,), [0], [(0, 3600 * SECOND)])["x-ratelimit-reset-tokens"] == "0s"


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (100_000, "100ms"),
        (SECOND, "1s"),
        (1_700_000, "1.7s"),
        (60 * SECOND, "1m0s"),
        (90_250_000, "1m30.25s"),
        (86_400 * SECOND, "24h0m0s"),
    ],
)
def test_windows_are_written_as_long_as_they_are(microseconds: int, text: str) -> None:
    assert go_window(microseconds) == text
