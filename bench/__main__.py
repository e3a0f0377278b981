"""`python -m bench`: measures the gateway side by side with plain proxies, and prints the table."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click
import uvloop

from bench import report
from bench.proxies import REFERENCE, known
from bench.rounds import Figures, Rounds
from bench.stand import DidNotStart, stand

_PROXIES = {proxy.name: proxy for proxy in known()}


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Medians are taken over them.")
@click.option("--only", metavar="NAME,…", help=f"Compare only these of {', '.join(_PROXIES)}.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write every round's figures to this file.")
def main(rounds: int, only: str | None, target: Path | None) -> None:
    """Compare CPU, latency and memory of the gateway, all policies on, with plain proxies. Takes a few minutes."""
    if not Path("/proc/self/stat").exists():
        raise click.ClickException("CPU time is read from /proc, which this system lacks; run it on Linux")
    figures = _measure(only.split(",") if only else list(_PROXIES), rounds)
    click.echo(report.table(figures, reference=REFERENCE))
    for name in figures:
        click.echo(f"{name}: {_PROXIES[name].does}")
    if target is not None:
        target.write_text(json.dumps({name: asdict(one) for name, one in figures.items()}, indent=1))
    if any(one.answers.bad for one in figures.values()):
        raise click.ClickException("some answers were bad, so these figures say little")


def _measure(names: list[str], rounds: int) -> Mapping[str, Figures]:
    if unknown := set(names) - set(_PROXIES):
        raise click.ClickException(f"--only: {', '.join(unknown)}: expected names out of {', '.join(_PROXIES)}")
    try:
        with stand([_PROXIES[name] for name in names]) as running:
            for name in running.absent:
                click.echo(f"{name}: not found on PATH, left out", err=True)
            measuring = Rounds(running.proxies, running.calls, engine=running.engine)
            uvloop.run(measuring.run(rounds))
    except DidNotStart as error:
        raise click.ClickException(str(error)) from error
    return measuring.figures


if __name__ == "__main__":
    main(prog_name="python -m bench")
