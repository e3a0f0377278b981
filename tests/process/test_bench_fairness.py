"""One tenant that floods a pool takes hardly anything from nine others, as `make bench` measures it."""

import re

import pytest
from click.testing import CliRunner

from bench import __main__, fairness

pytestmark = pytest.mark.alone


TRIES = 3  # a machine that stands still for a moment takes from somebody in one of them


def test_nine_tenants_keep_what_they_have_beside_a_flood() -> None:
    for _ in range(TRIES):
        alone, flooded = fairness.measure(fairness.QUICK)
        assert flooded.flood > 0
        # Of few calls one more or less.
        if flooded.nine >= 0.9 * alone.nine and flooded.least >= 0.8 * alone.least:
            return
    pytest.fail(f"{alone}, {flooded}")


@pytest.mark.parametrize("others", [["--routing"], ["--limiter"], ["--rounds", "1"]])
def test_it_goes_with_quick_only(others: list[str]) -> None:
    told = CliRunner().invoke(__main__.main, ["--fairness", *others])
    assert told.exit_code == 2
    assert re.search("--fairness|--routing", told.output)
