"""Shares of calls: by chance within what chance allows, by beginnings that stay, and none for a weight of 0."""

import random
from collections import Counter
from collections.abc import Mapping
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.split import Split

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0, 0.5, 1, 5, 95, 1000]), min_size=1).filter(
    lambda weights: any(weights.values())
)


def split_of(weights: Mapping[str, float], seed: int = 1) -> Split[str]:
    return Split(weights, lambda name, _: name, random.Random(seed))


@pytest.mark.parametrize("weights", [{"a": 95, "b": 5}, {"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 0, "c": 0.1}])
@pytest.mark.parametrize("sticky", [False, True])
def test_each_part_gets_its_share(weights: dict[str, float], *, sticky: bool) -> None:
    calls, split, beginnings = 20_000, split_of(weights), random.Random(7)
    chosen = Counter(split.choose((beginnings.getrandbits(64),) if sticky else ()) for _ in range(calls))
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(chosen[name] - calls * share) <= 4 * sqrt(calls * share * (1 - share))


@given(WEIGHTS, st.integers(0, 2**64 - 1), st.integers())
def test_what_begins_alike_goes_to_one_part_in_every_gateway(weights: dict[str, float], prefix: int, seed: int) -> None:
    part = split_of(weights).choose((prefix, 5))
    assert weights[part] > 0
    assert split_of(weights, seed).choose((prefix,)) == part


@given(st.floats(0, 1000), st.floats(0, 1000), st.integers(0, 2**64 - 1))
def test_only_what_has_to_moves_when_a_weight_changes(before: float, after: float, prefix: int) -> None:
    was, is_now = (split_of({"a": 1000, "b": weight}).choose((prefix,)) for weight in (before, after))
    assert is_now in {was, "b" if after > before else "a"}


@given(WEIGHTS)
def test_the_others_are_all_that_have_a_share_the_largest_first(weights: dict[str, float]) -> None:
    split = split_of(weights)
    with_share = {name for name, weight in weights.items() if weight}
    for name in with_share:
        others = list(split.others(name))
        assert set(others) == with_share - {name}
        assert [weights[other] for other in others] == sorted((weights[other] for other in others), reverse=True)
    assert weights[split.parts[0]] == max(weights.values())
