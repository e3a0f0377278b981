import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.config import RetryBudget
from gateway.routing.retries import FIRST_PAUSE_S, LONGEST_PAUSE_S, Retries

BUDGETS = st.builds(
    RetryBudget,
    share=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    per_second=st.sampled_from([0.0, 0.5, 10.0]),
)


def retries(budget: RetryBudget) -> Retries:
    return Retries(budget, random.Random(1), now=0.0)


@given(BUDGETS, st.lists(st.tuples(st.integers(0, 200), st.floats(0, 5), st.integers(0, 50)), max_size=30))
def test_retries_are_a_share_of_the_calls_and_some_a_second_and_what_was_saved(
    budget: RetryBudget, steps: list[tuple[int, float, int]]
) -> None:
    pool, now, calls, taken, wanted = retries(budget), 0.0, 0, 0, 0
    for more_calls, pause_s, wishes in steps:
        now, calls, wanted = now + pause_s, calls + more_calls, wanted + wishes
        pool.calls += more_calls
        taken += sum(pool.take(now) for _ in range(wishes))
    saved = 100 * budget.share + 10 * budget.per_second
    assert taken <= saved + budget.share * calls + budget.per_second * now + 1e-6
    assert taken >= min(wanted, int(saved))


def test_a_storm_ends_at_the_share() -> None:
    pool = retries(RetryBudget(share=0.2, per_second=0))
    while pool.take(0.0):
        pass
    taken = 0
    for _ in range(1000):
        pool.calls += 1
        taken += pool.take(0.0) + pool.take(0.0)
    assert 199 <= taken <= 200


def test_without_a_budget_there_is_no_retry() -> None:
    pool = retries(RetryBudget(share=0, per_second=0))
    pool.calls += 1000
    assert not pool.take(1000.0)


@given(st.integers(1, 10))
def test_pauses_double_and_stay_short(failures: int) -> None:
    pause_s = retries(RetryBudget()).pause_s(failures)
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1))
    assert longest / 2 <= pause_s <= longest
