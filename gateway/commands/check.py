"""`gateway check`: whether the config is good, what it amounts to, and what in it may surprise."""

from pathlib import Path

import click

from gateway.clock import SystemClock
from gateway.commands.command import config_option, load
from gateway.config import file
from gateway.config.unmatched import unmatched


@click.command()
@config_option
def check(path: Path | None) -> None:
    """Validate the config file and say what it amounts to."""
    settings = load(path)
    replicas = sum(len(pool.replicas) for pool in settings.pools.values())
    finding = sum(pool.discovery is not None for pool in settings.pools.values())
    rules = sum(len(plan) for plan in settings.limits.plans.values())
    found = f" ({finding} {'pool finds' if finding == 1 else 'pools find'} more)" if finding else ""
    click.echo(
        f"{file.find(path)}: good. {_count(len(settings.models), 'model')}, {_count(len(settings.pools), 'pool')} "
        f"with {_count(replicas, 'replica')}{found}, {_count(len(settings.auth.issuers), 'issuer')}, "
        f"{_count(len(settings.auth.all_api_keys), 'API key')}, {_count(len(settings.limits.plans), 'plan')} "
        f"with {_count(rules, 'rule')}."
    )
    if settings.auth.development_key is not None:
        click.echo(
            "Warning: auth.development_key accepts tokens signed with a local file; not for production.", err=True
        )
    for where in settings.auth.in_the_clear():
        click.echo(f"Warning: {where} is plain http: who is on the way can read tokens or replace keys.", err=True)
    for where in settings.auth.expired(SystemClock().now()):
        click.echo(f"Warning: {where} has expired and is refused; remove it, or give it another end.", err=True)
    if settings.limits.journal is not None and not Path(settings.limits.journal).is_dir():
        click.echo(f"Warning: limits.journal, {settings.limits.journal}, is no directory on this machine.", err=True)
    for where in unmatched(settings):
        click.echo(f"Warning: {where} matches no model; names are those under models, not aliases.", err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
