"""`python -m tests.chaos`: gateways, engines and a store are harmed for a minute; then the books have to be right."""

import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import click
import uvloop

from tests.chaos.report import report
from tests.chaos.run import Verdict, run
from tests.chaos.topologies import TOPOLOGIES


@click.command()
@click.option("--topology", type=click.Choice(list(TOPOLOGIES)), help="Only this one. Default: each in turn.")
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Of harm, for each.")
@click.option("--seed", type=int, help="What is drawn is drawn from it. Default: a new one, which is told.")
def main(*, topology: str | None, seconds: float, seed: int | None) -> None:
    """Run gateways under faults, and hold what is left against what the engines say."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    failed = [name for name in ([topology] if topology else TOPOLOGIES) if not _held(name, seconds, seed)]
    sys.exit(1 if failed else 0)


def _held(name: str, seconds: float, seed: int) -> bool:
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    click.echo(f"{name}: {seconds:g} s, seed {seed}")
    verdict: Verdict | None = None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            running = run(name, directory, seconds=seconds, seed=seed, say=lambda text: click.echo(f"  {text}"))
            verdict = runner.run(running)
        click.echo(report(verdict.evidence))
        return _told(name, verdict)
    finally:
        if verdict is not None and not verdict.violations:
            shutil.rmtree(directory)
        else:
            click.echo(f"{name}: logs, accounts, configs and journals are in {directory}", err=True)


def _told(name: str, verdict: Verdict) -> bool:
    if not verdict.violations:
        click.echo(f"{name}: every invariant held")
        return True
    for violation in verdict.violations:
        click.echo(f"{name}: VIOLATED: {violation.invariant}\n    {violation.evidence}", err=True)
    return False


if __name__ == "__main__":
    main(prog_name="python -m tests.chaos")
