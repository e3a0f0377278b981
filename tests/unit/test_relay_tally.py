from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.usage import Usage
from gateway.relay.tally import MAX_TOKENS, Tally, read


def counts(prompt: Any, completion: Any, **rest: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, **rest}


def told(*events: dict[str, Any], summed: bool = False, prompts: int = 1, choices: int = 1) -> Usage | None:
    tally = Tally(summed=summed, prompts=prompts, choices=choices)
    for event in events:
        tally.note(event)
    return tally.usage()


def of_choice(index: int, prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": "x"}], "usage": counts(prompt, completion)}


def test_running_totals_are_replaced_and_never_added() -> None:
    running = [of_choice(0, 10, k) for k in range(1, 51)]
    assert told(*running) == Usage(prompt=10, completion=50)
    assert told(*running, {"choices": [], "usage": counts(10, 50)}) == Usage(prompt=10, completion=50)


def test_the_total_wins_over_running_totals_of_choices() -> None:
    events = [of_choice(0, 10, 4), of_choice(1, 10, 9), {"choices": [], "usage": counts(10, 14)}]
    assert told(*events, choices=2) == Usage(prompt=10, completion=14)


def test_without_a_total_choices_are_added_and_their_prompt_counts_once() -> None:
    assert told(of_choice(0, 10, 4), of_choice(1, 10, 9), choices=2) == Usage(prompt=10, completion=13)


def test_each_prompt_counts_its_own_prompt_tokens_once() -> None:
    events = [of_choice(0, 10, 1), of_choice(1, 10, 1), of_choice(2, 30, 1), of_choice(3, 30, 1)]
    assert told(*events, prompts=2, choices=4) == Usage(prompt=40, completion=4)


def test_totals_per_choice_of_llama_cpp_are_added() -> None:
    events = [{"choices": [], "usage": counts(36, 12)}, {"choices": [], "usage": counts(36, 8)}]
    assert told(*events, summed=True, choices=2) == Usage(prompt=36, completion=20)
    assert told(*events, choices=2) == Usage(prompt=36, completion=8)


def test_zeros_first_and_nulls_say_nothing() -> None:
    zeros = {"choices": [{"index": 0}], "usage": counts(0, 0)}
    null = {"choices": [{"index": 0}], "usage": None}
    assert told(zeros, null, zeros) is None
    assert told(zeros, null, {"choices": [], "usage": counts(7, 5)}) == Usage(prompt=7, completion=5)


def test_details_are_parts_of_the_totals() -> None:
    usage = counts(
        100, 50, prompt_tokens_details={"cached_tokens": 80}, completion_tokens_details={"reasoning_tokens": 30}
    )
    assert read(usage) == Usage(prompt=100, completion=50, cached=80, reasoning=30)
    assert read(counts(100, 50, reasoning_tokens=30)) == Usage(prompt=100, completion=50, reasoning=30)
    more_than_all = counts(10, 5, prompt_tokens_details={"cached_tokens": 80}, reasoning_tokens=99)
    assert read(more_than_all) == Usage(prompt=10, completion=5, cached=10, reasoning=5)


@pytest.mark.parametrize("odd", [None, "12", True, -1, 1.5, [], {}, MAX_TOKENS + 1])
def test_a_count_that_is_none_is_zero(odd: Any) -> None:
    assert read(counts(3, odd)) == Usage(prompt=3, completion=0)
    assert read(counts(odd, odd)) is None


any_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "usage", "index", "message"]), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["choices", "usage"]), any_json))
def test_any_event_is_survived(event: dict[str, Any]) -> None:
    usage = told(event)
    assert usage is None or usage.prompt >= usage.cached >= 0
