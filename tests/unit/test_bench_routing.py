"""What a balance is for, held by simulated replicas: virtual time, the same every time."""

import re

from click.testing import CliRunner

from bench import __main__, routing
from bench.routing import Result, Simulation


def by(balance: str, load: routing.Load) -> Result:
    return Simulation(balance, load).run()


def test_prefix_affinity_halves_the_wait_for_the_first_byte_where_calls_begin_alike() -> None:
    load = routing.SHARED
    affinity, least = by("prefix_affinity", load), by("least_requests", load)
    assert affinity.p50_s <= least.p50_s / 2
    assert affinity.p99_s <= least.p99_s
    assert affinity.cached > least.cached + 0.15


def test_prefix_affinity_does_not_flood_the_replica_of_a_hot_prefix() -> None:
    for load in (routing.HOT, routing.ALIKE):
        affinity, least = by("prefix_affinity", load), by("least_requests", load)
        assert affinity.p50_s <= 1.1 * least.p50_s
        assert affinity.p99_s <= 1.1 * least.p99_s


def test_the_table_shows_every_balance_under_every_load() -> None:
    told = CliRunner().invoke(__main__.main, ["--routing"])
    assert told.exit_code == 0, told.output
    rows = re.findall(r"^\| (\w[\w ]+?) +\| (\w+) +\| +\d+ \| +\d+ \| +\d+ \|$", told.output, re.MULTILINE)
    assert rows == [(load, balance) for load in routing.LOADS for balance in routing.BALANCES]
    assert CliRunner().invoke(__main__.main, ["--routing", "--quick"]).exit_code == 2
