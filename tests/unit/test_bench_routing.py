"""What a balance is for, held by simulated replicas: virtual time, the same every time."""

import re
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from bench import __main__, routing
from tests.documents import ROOT


class Told(NamedTuple):
    """A row of the table."""

    p50_ms: int
    p99_ms: int
    cached: int


@pytest.fixture(scope="module")
def table() -> str:
    told = CliRunner().invoke(__main__.main, ["--routing"])
    assert told.exit_code == 0, told.output
    return told.output.strip()


@pytest.fixture(scope="module")
def told(table: str) -> dict[tuple[str, str], Told]:
    rows = re.findall(r"^\| (\w[\w' ]+?) +\| (\w+) +\| +(\d+) \| +(\d+) \| +(\d+) \|$", table, re.MULTILINE)
    return {(load, balance): Told(*map(int, figures)) for load, balance, *figures in rows}


def test_every_balance_is_shown_under_every_load(told: dict[tuple[str, str], Told]) -> None:
    assert list(told) == [(load, balance) for load in routing.LOADS for balance in routing.BALANCES]


def test_prefix_affinity_halves_the_wait_for_the_first_byte_where_calls_begin_alike(
    told: dict[tuple[str, str], Told],
) -> None:
    affinity, least = [told["shared prefixes", balance] for balance in ("prefix_affinity", "least_requests")]
    assert affinity.p50_ms <= least.p50_ms / 2
    assert affinity.p99_ms <= least.p99_ms
    assert affinity.cached > least.cached + 15


@pytest.mark.parametrize("balance", ["least_load", "prefix_and_load"])
def test_engines_that_tell_their_load_are_spared_what_nobody_here_can_see(
    told: dict[tuple[str, str], Told], balance: str
) -> None:
    blind = told["others' calls", "least_requests"]
    assert told["others' calls", balance].p99_ms <= blind.p99_ms / 8
    assert told["others' calls", balance].p50_ms <= blind.p50_ms


@pytest.mark.parametrize("load", ["one hot prefix", "opened alike"])
def test_prefix_affinity_does_not_flood_the_replica_of_a_hot_prefix(
    told: dict[tuple[str, str], Told], load: str
) -> None:
    affinity, least = [told[load, balance] for balance in ("prefix_affinity", "least_requests")]
    assert affinity.p50_ms <= 1.1 * least.p50_ms
    assert affinity.p99_ms <= 1.1 * least.p99_ms


def test_the_documents_show_the_figures(table: str, told: dict[tuple[str, str], Told]) -> None:
    assert table in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    affinity, least = [told["shared prefixes", balance] for balance in ("prefix_affinity", "least_requests")]
    sentence = rf"after {affinity.p50_ms} ms in the median, least\s+requests after {least.p50_ms} ms"
    assert re.search(sentence, (ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_simulation_goes_with_no_other_option() -> None:
    assert CliRunner().invoke(__main__.main, ["--routing", "--quick"]).exit_code == 2
