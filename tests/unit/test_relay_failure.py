import pytest

from gateway.errors import RETRY_AFTER_MAX_S
from gateway.relay.failure import Failure, judge, refusal_of
from gateway.relay.retry_after import wait_of

NOON = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT


@pytest.mark.parametrize(
    ("field", "wait_s"),
    [
        (b"7", 7),
        (b" 1.5 ", 1.5),
        (b"Wed, 21 Oct 2015 07:28:30 GMT", 30),
        (b"Wed, 21 Oct 2015 07:28:30", 30),
        (b"Wed, 21 Oct 2015 07:27:00 GMT", None),
        *[(field, None) for field in (b"", b"0", b"-1", b"nan", b"inf", b"soon", b"\xff", b"9" * 5000, b"1 Jan 99999")],
    ],
)
def test_when_to_come_again(field: bytes, wait_s: float | None) -> None:
    assert wait_of(field, now=NOON) == wait_s


@pytest.mark.parametrize("status", [401, 403, 404, 408, 424, 429, 499, 501, 503, 505])
def test_these_do_not_count_against_a_replica(status: int) -> None:
    failure = judge(status, b"")
    assert isinstance(failure, Failure)
    assert not failure.is_fault


@pytest.mark.parametrize("status", [201, 302, 500, 502, 504, 599])
def test_these_do(status: int) -> None:
    failure = judge(status, b"")
    assert isinstance(failure, Failure)
    assert failure.is_fault


def test_the_client_is_told_the_shortest_wait_that_engines_named() -> None:
    full = [judge(503, b"", retry_after_s=wait_s) for wait_s in (20, None, 7.2, 7000)]
    failures = [failure for failure in full if isinstance(failure, Failure)]
    assert refusal_of(failures).headers["Retry-After"] == "5"  # one may be asked again at any time
    assert refusal_of([failures[0], *failures[2:]]).headers["Retry-After"] == "8"
    assert refusal_of(failures[1:2]).headers["Retry-After"] == "5"
    assert refusal_of(failures[3:]).headers["Retry-After"] == str(RETRY_AFTER_MAX_S)
