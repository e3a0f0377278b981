"""`python -m bench`: measures the gateway side by side with plain proxies, and prints the table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
import uvloop

from bench import fairness, identity, limiter, report, routing, streams, tokens
from bench.processes import CannotOpen, open_files
from bench.proxies import REFERENCE, Proxy, known
from bench.rounds import Figures, Rounds
from bench.stand import DidNotStart, Stand, stand

_PROXIES = {proxy.name: proxy for proxy in known()}


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Medians are taken over them.  [default: 5; of streams 1; of the limiter 3; of identity 6]",
)
@click.option("--only", metavar="NAME,…", help=f"Compare only these of {', '.join(_PROXIES)}.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write every round's figures to this file.")
@click.option("--streams", "of_streams", is_flag=True, help="Measure 1,000 streams at once, for a minute each proxy.")
@click.option("--limiter", "of_limiter", is_flag=True, help="Measure what limits in a shared store cost, by load.")
@click.option("--identity", "of_identity", is_flag=True, help="Measure tokens, and a provider of keys that hangs.")
@click.option("--routing", "of_routing", is_flag=True, help="Compare balances by simulated replicas; takes seconds.")
@click.option("--fairness", "of_fairness", is_flag=True, help="Measure nine tenants beside one that floods their pool.")
@click.option(
    "--quick", is_flag=True, help="With these but --routing: little of it, to see that it works; not for figures."
)
def main(
    *,
    rounds: int | None,
    only: str | None,
    target: Path | None,
    of_streams: bool,
    of_limiter: bool,
    of_identity: bool,
    of_routing: bool,
    of_fairness: bool,
    quick: bool,
) -> None:
    """Compare CPU, latency and memory of the gateway, all policies on, with plain proxies. Takes a few minutes."""
    if of_routing or of_fairness:
        if (
            rounds
            or only
            or target
            or of_streams
            or of_limiter
            or of_identity
            or (of_routing and (of_fairness or quick))
        ):
            raise click.UsageError("--routing goes with no other option, and --fairness with --quick only")
        click.echo(routing.table() if of_routing else fairness.table(fairness.QUICK if quick else fairness.FULL))
        return
    if quick and not (of_streams or of_limiter or of_identity):
        raise click.UsageError("--quick goes with --streams, --limiter, --identity and --fairness")
    _check_measured(of_streams or only is not None, of_limiter, of_identity)
    _check_system()
    proxies = _chosen(only)
    try:
        if of_limiter:
            figures, columns = _measure_limiter(rounds or 3, limiter.QUICK if quick else limiter.FULL), report.LIMITER
        elif of_identity:
            slices = identity.QUICK if quick else identity.FULL
            figures, columns = _measure_identity(rounds or 6, slices), report.IDENTITY
            click.echo(f"{tokens.table(tokens.QUICK if quick else tokens.NEW)}\n")
        elif of_streams:
            size = streams.QUICK if quick else streams.FULL
            figures, columns = _measure_streams(proxies, rounds or 1, size), report.STREAMS
        else:
            figures, columns = _measure_requests(proxies, rounds or 5), report.REQUESTS
    except (DidNotStart, CannotOpen) as error:
        raise click.ClickException(str(error)) from error
    _show(figures, columns)
    if target is not None:
        target.write_text(json.dumps({name: asdict(one) for name, one in figures.items()}, indent=1))
    if any(one.answers.bad for one in figures.values()):
        raise click.ClickException("some answers were bad, so these figures say little")


def _check_measured(*asked: bool) -> None:
    if sum(asked) > 1:
        raise click.UsageError(
            "--limiter and --identity have gateways of their own: each goes without --only and others"
        )


def _check_system() -> None:
    if not Path("/proc/self/stat").exists():
        raise click.ClickException("CPU time is read from /proc, which this system lacks; run it on Linux")


def _chosen(only: str | None) -> list[Proxy]:
    names = only.split(",") if only else list(_PROXIES)
    if unknown := set(names) - set(_PROXIES):
        raise click.ClickException(f"--only: {', '.join(unknown)}: expected names out of {', '.join(_PROXIES)}")
    return [_PROXIES[name] for name in names]


def _measure_requests(proxies: Sequence[Proxy], rounds: int) -> Mapping[str, Figures]:
    with stand(proxies) as running:
        _tell_absent(running)
        measuring = Rounds(running.proxies, running.calls, engine=running.engine.port)
        uvloop.run(measuring.run(rounds))
    return measuring.figures


def _measure_streams(proxies: Sequence[Proxy], rounds: int, size: streams.Size) -> Mapping[str, Figures]:
    open_files(2 * size.streams)
    measuring = streams.Streams(size)
    for number in range(rounds):
        with stand(proxies) as running:
            if number == 0:
                _tell_absent(running)
            uvloop.run(measuring.round(number, running))
    return measuring.figures


def _measure_limiter(rounds: int, load: limiter.Load) -> Mapping[str, Figures]:
    measuring = limiter.Limiter(load)
    with stand(limiter.proxies()) as running:
        for number in range(rounds):
            uvloop.run(measuring.round(number, running))
    return measuring.figures


def _measure_identity(rounds: int, slices: identity.Slices) -> Mapping[str, Figures]:
    with identity.Provider() as provider, stand([identity.gateway(provider)]) as running:
        measuring = identity.Identity(slices, provider)
        for number in range(rounds):
            uvloop.run(measuring.round(number, running))
    return measuring.figures


def _tell_absent(running: Stand) -> None:
    for name in running.absent:
        click.echo(f"{name}: not found on PATH, left out", err=True)
    if not running.proxies:
        raise click.ClickException("nothing is left to compare")


def _show(figures: Mapping[str, Figures], columns: report.Columns) -> None:
    if columns is report.IDENTITY:
        click.echo(report.table(figures, columns, reference=REFERENCE, rows_are="provider"))
        click.echo(identity.compared(figures))
        return
    click.echo(report.table(figures, columns, reference=REFERENCE))
    for name in figures if columns is not report.LIMITER else ():
        click.echo(f"{name}: {_PROXIES[name].does if name in _PROXIES else 'streams straight from the engine'}")


if __name__ == "__main__":
    main(prog_name="python -m bench")
