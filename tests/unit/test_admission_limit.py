"""The arithmetic of windows: how much ever gets through, and when what comes back."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.limit import period, refill
from tests.limiting import NOON_US, SECOND, limit

FIGURES = st.integers(1, 10**9)
WINDOWS_S = st.sampled_from([0.1, 1, 7.3, 60, 3600, 86_400, 366 * 86_400])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(
    figure=FIGURES,
    window_s=WINDOWS_S,
    arrivals=st.lists(st.tuples(st.integers(0, 400 * SECOND), st.integers(1, 10**9)), min_size=1, max_size=60),
)
def test_no_span_of_time_admits_more_than_the_capacity_and_what_refills_in_it(
    figure: int, window_s: float, arrivals: list[tuple[int, int]]
) -> None:
    one = limit("bucket", figure, window_s=window_s)
    used, at_us, now_us = 0, NOON_US, NOON_US
    admitted: list[tuple[int, int]] = []
    for after_us, cost in arrivals:
        now_us += after_us
        used, at_us = refill(used, at_us, now_us=now_us, limit=figure, window_us=one.window_us)
        if not one.refuses(used, min(cost, figure)):
            used += min(cost, figure)
            admitted.append((now_us, min(cost, figure)))
    for first, (start_us, _) in enumerate(admitted):
        total = 0
        for end_us, cost in admitted[first:]:
            total += cost
            assert total <= figure + (end_us - start_us) * figure / one.window_us


@given(figure=FIGURES, window_s=WINDOWS_S, used=st.integers(0, 10**10), cost=st.integers(1, 10**9))
def test_a_call_fits_when_retry_after_says_and_not_a_microsecond_before(
    figure: int, window_s: float, used: int, cost: int
) -> None:
    one = limit("bucket", figure, window_s=window_s)
    cost = min(cost, figure)
    wait_us = one.retry_after_us(used, 0, cost)
    for after_us, fits in [(wait_us, True), (wait_us - 1, False)]:
        if after_us >= 0:
            later, _ = refill(used, NOON_US, now_us=NOON_US + after_us, limit=figure, window_us=one.window_us)
            assert one.refuses(later, cost) != fits


@given(figure=FIGURES, window_s=WINDOWS_S, used=st.integers(1, 10**10))
def test_nothing_is_used_when_reset_after_says_and_something_a_microsecond_before(
    figure: int, window_s: float, used: int
) -> None:
    one = limit("bucket", figure, window_s=window_s)
    wait_us = one.reset_after_us(used, 0)
    assert refill(used, NOON_US, now_us=NOON_US + wait_us, limit=figure, window_us=one.window_us)[0] == 0
    assert refill(used, NOON_US, now_us=NOON_US + wait_us - 1, limit=figure, window_us=one.window_us)[0] > 0


@given(
    used=st.integers(1, 10**6),
    figure=FIGURES,
    window_s=WINDOWS_S,
    steps=st.lists(st.integers(0, 10 * SECOND), min_size=1, max_size=50),
)
def test_looking_often_refills_no_faster_than_looking_once(
    used: int, figure: int, window_s: float, steps: list[int]
) -> None:
    window_us = limit("bucket", figure, window_s=window_s).window_us
    often, at_us, now_us = used, NOON_US, NOON_US
    for step_us in steps:
        now_us += step_us
        often, at_us = refill(often, at_us, now_us=now_us, limit=figure, window_us=window_us)
    once, _ = refill(used, NOON_US, now_us=now_us, limit=figure, window_us=window_us)
    assert once <= often <= once + len(steps)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2400, 1, 1)))  # noqa: DTZ001 hypothesis wants naive bounds
def test_periods_are_those_of_the_utc_calendar(moment: datetime) -> None:
    now_us = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    (day, day_ends_us), (month, month_ends_us) = period("day", now_us), period("month", now_us)
    day_ends = EPOCH + timedelta(microseconds=day_ends_us)
    month_ends = EPOCH + timedelta(microseconds=month_ends_us)
    assert day_ends.date() == moment.date() + timedelta(days=1)
    assert (month_ends.day, month_ends.time()) == (1, datetime.min.time())
    assert (month_ends - timedelta(microseconds=1)).strftime("%Y-%m") == moment.strftime("%Y-%m")
    assert (period("day", day_ends_us)[0], period("month", month_ends_us)[0]) == (day + 1, month + 1)
