"""What is learned of a model's prompts: near the truth for honest calls, and not for a minority to spoil."""

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.estimate import FEWEST_BYTES, FULL_STEP_BYTES, MARGIN, MOST_BYTES, STEP, Estimate
from gateway.calls.usage import Usage

CALLS = st.tuples(st.integers(1, 2**25), st.integers(1, 2**32))


def taught(estimate: Estimate, *calls: tuple[int, int]) -> float:
    for size, prompt in calls:
        estimate.learn(size, Usage(prompt, 5))
    return estimate.bytes_per_token


def test_before_anything_is_known_a_token_has_four_bytes_and_no_prompt_is_empty() -> None:
    assert [Estimate().text(size) for size in (1, 3, 4, 900, 901, 903, 904)] == [1, 1, 1, 225, 225, 225, 226]


@pytest.mark.parametrize("ratio", [1.3, 2.0, 3.0, 4.5, 6.0])
def test_calls_that_are_alike_are_reserved_with_the_margin(ratio: float) -> None:
    learned = taught(Estimate(), *[(8192, round(8192 / ratio))] * 200)
    assert learned == pytest.approx(max(ratio / MARGIN, FEWEST_BYTES), rel=2 * STEP)


def test_two_bytes_for_a_token_are_known_after_some_fifty_calls() -> None:
    assert taught(Estimate(), *[(8192, 4096)] * 70) == pytest.approx(2 / MARGIN, rel=2 * STEP)


def test_most_calls_of_a_mixed_traffic_are_covered() -> None:
    sizes = [round(8192 / ratio) for ratio in (3.2, 3.6, 3.9, 4.1, 4.3, 4.6, 5.0)]
    estimate = Estimate()
    taught(estimate, *[(8192, prompt) for prompt in islice(cycle(sizes), 700)])
    assert sum(estimate.text(8192) >= prompt for prompt in sizes) >= 6


@given(st.floats(FEWEST_BYTES, MOST_BYTES), CALLS)
def test_no_call_moves_the_figure_by_more_than_a_step_nor_out_of_its_bounds(
    figure: float, call: tuple[int, int]
) -> None:
    estimate = Estimate()
    estimate.bytes_per_token = figure
    after = taught(estimate, call)
    share = min(call[0] / FULL_STEP_BYTES, 1)
    assert figure / (1 + STEP * share) * 0.999999 <= after <= figure * (1 + STEP * share) * 1.000001
    assert FEWEST_BYTES <= after <= MOST_BYTES


@given(st.lists(CALLS, max_size=30))
def test_the_same_calls_teach_the_same(calls: list[tuple[int, int]]) -> None:
    assert taught(Estimate(), *calls) == taught(Estimate(), *calls)


@pytest.mark.parametrize("spoiling", [(4096, 4096), (2**24, 2**24), (2**24, 1)], ids=["digits", "huge", "padding"])
def test_a_minority_moves_it_no_further_than_the_honest_calls_are_spread(spoiling: tuple[int, int]) -> None:
    honest = [(8192, round(8192 / ratio)) for ratio in (3.6, 4.0, 4.4)]
    turns = [call for one in islice(cycle(honest), 999) for call in (one, *([spoiling] if one != honest[1] else []))]
    learned = taught(Estimate(), *turns)
    assert 3.6 / MARGIN * (1 - 2 * STEP) <= learned <= 4.4 / MARGIN * (1 + 2 * STEP)


def test_what_an_engine_did_not_count_teaches_nothing() -> None:
    estimate = Estimate()
    estimate.learn(8192, Usage(1, 5, source="estimated"))
    estimate.learn(8192, Usage(0, 5))
    estimate.learn(0, Usage(1000, 5))
    assert estimate.bytes_per_token == 4
