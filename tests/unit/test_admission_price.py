"""What tokens count at a price: exact, rounded once, and never more than was reserved for them."""

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.limit import MAX_COUNT
from gateway.admission.price import Price
from gateway.admission.reservation import Reservation
from gateway.calls.usage import Usage
from tests.limiting import ACCOUNT, limit

WEIGHTS = st.integers(0, 1_000_000)
PRICES = st.builds(Price, WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS)


@st.composite
def usages(draw: st.DrawFn, *, largest: int = 2**33) -> Usage:
    prompt, completion = draw(st.integers(0, largest)), draw(st.integers(0, largest))
    return Usage(prompt, completion, draw(st.integers(0, prompt)), draw(st.integers(0, completion)))


def exactly(price: Price, usage: Usage) -> Fraction:
    kinds = (
        (usage.prompt - usage.cached, price.prompt),
        (usage.cached, price.cached),
        (usage.completion - usage.reasoning, price.completion),
        (usage.reasoning, price.reasoning),
    )
    return sum((Fraction(tokens * thousandths, 1000) for tokens, thousandths in kinds), Fraction(0))


@given(PRICES, usages())
def test_a_call_counts_its_weighted_sum_rounded_up_once(price: Price, usage: Usage) -> None:
    assert price.units(*usage[:4]) == ceil(exactly(price, usage))


@given(PRICES, usages())
def test_no_call_of_a_size_counts_more_than_the_dearest(price: Price, usage: Usage) -> None:
    most = price.dearest.units(usage.prompt, usage.completion)
    assert price.units(*usage[:4]) <= most
    # and one of them does, so that nothing is reserved in vain
    ends = [(cached, reasoning) for cached in (0, usage.prompt) for reasoning in (0, usage.completion)]
    assert most == max(price.units(usage.prompt, usage.completion, *parts) for parts in ends)


@given(PRICES, usages(largest=2**70), st.integers(0, MAX_COUNT), st.booleans())
def test_reserving_and_settling_leave_what_the_call_counts(
    price: Price, usage: Usage, reserved: int, uncertain: bool
) -> None:
    plain, weighted = limit("day", MAX_COUNT), limit("day", MAX_COUNT, price=price)
    made = Reservation("call", ACCOUNT, (plain, weighted, limit("lease", 5)), (7, reserved, 1))
    settled = made.settlement(usage, uncertain=uncertain)
    assert settled.usage is not None
    counted = min(ceil(exactly(price, settled.usage)), MAX_COUNT)
    assert settled.deltas[1] + reserved == counted
    assert settled.deltas[0] + 7 == settled.usage.prompt + settled.usage.completion
    if uncertain:
        assert settled.charges is not None
        assert settled.charges[1] == counted
    if usage.prompt + usage.completion <= MAX_COUNT:
        assert settled.usage == usage
