"""A replica's pace: what it generated lately, by the length of its answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.pace import Pace

TOKENS, SECONDS = st.integers(1, 10**6), st.floats(0.001, 10**4)


def test_of_a_replica_that_has_told_nothing_nothing_is_known() -> None:
    assert Pace().tokens_in(100.0, choices=2) == 0


@given(answers=st.lists(st.tuples(TOKENS, SECONDS), min_size=1), seconds=SECONDS)
def test_it_lies_between_the_slowest_and_the_fastest_answer(answers: list[tuple[int, float]], seconds: float) -> None:
    pace = Pace()
    for tokens, took in answers:
        pace.note(tokens, took, choices=1)
    paces = [tokens / took for tokens, took in answers]
    assert min(paces) * seconds * 0.999 - 1 <= pace.tokens_in(seconds, choices=1) <= max(paces) * seconds * 1.001


def test_a_long_answer_weighs_more_than_a_short_one() -> None:
    pace = Pace()
    pace.note(1000, 10.0, choices=1)
    pace.note(1, 1.0, choices=1)
    assert pace.tokens_in(1.0, choices=1) == pytest.approx(91, abs=1)


def test_what_was_long_ago_counts_for_nothing() -> None:
    pace = Pace()
    pace.note(10**6, 10.0, choices=1)
    for _ in range(400):
        pace.note(100, 10.0, choices=1)
    assert pace.tokens_in(10.0, choices=1) == pytest.approx(100, abs=1)


def test_choices_are_generated_side_by_side() -> None:
    pace = Pace()
    pace.note(400, 10.0, choices=4)
    assert pace.tokens_in(10.0, choices=1) == 100
    assert pace.tokens_in(10.0, choices=3) == 300
