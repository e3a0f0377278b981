"""`gateway limit`: shows and changes overrides in the store that the config names, whether or not a gateway runs."""

from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import click

from gateway.admission.overrides.applied import COLUMNS, applied, model_asked, used_of
from gateway.admission.overrides.asked import place_asked, plan_asked, rule_asked
from gateway.admission.overrides.desk import Desk
from gateway.admission.overrides.override import Override
from gateway.admission.overrides.overrides import OVERRIDES, Overrides
from gateway.admission.overrides.rows import ROWS
from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.settings import RedisSettings
from gateway.admission.rules import Rulebook
from gateway.admission.settings.entry import Entry
from gateway.clock import SystemClock
from gateway.commands.command import (
    BAD_CONFIG,
    at_store,
    config_option,
    fail,
    format_option,
    given,
    load_shared,
    show_rows,
)
from gateway.config import Config
from gateway.identity.principal import Principal

_CLOCK = SystemClock()
_APPLIED = ("plan", *COLUMNS)

_Ask = Callable[[Desk], Coroutine[Any, Any, Iterable[Entry[Override]]]]
_Row = dict[str, Any]

_whose = click.option("--tenant", required=True, help="Whose limits.")
_key = click.option("--key", help="Only this key of the tenant.")
_for = click.option("--for", help="How long, such as 2h. Default: until it is removed.")


@click.group()
def limit() -> None:
    """Show and change limits while gateways run."""


@limit.command("set")
@config_option
@_whose
@_key
@click.option("--rule", required=True, help="The rule to change.")
@click.option("--requests", type=int, help="The figure of a rule that limits requests.")
@click.option("--tokens", type=int, help="The figure of a rule that limits tokens.")
@click.option("--concurrent", type=int, help="The figure of a rule that limits calls at once.")
@click.option("--shadow/--no-shadow", default=None, help="Whether the rule only counts, and refuses nothing.")
@_for
@format_option
def set_rule(path: Path | None, form: str, **asked: Any) -> None:
    """Change a rule for a tenant or one of its keys, in place of what was set before."""
    _show(path, form, lambda desk: desk.put(rule_asked(given(asked), now_s=_CLOCK.now())), asked)


@limit.command("plan")
@config_option
@_whose
@_key
@click.option("--plan", required=True, help="The plan to have.")
@_for
@format_option
def set_plan(path: Path | None, form: str, **asked: Any) -> None:
    """Give a tenant or one of its keys another plan."""
    _show(path, form, lambda desk: desk.put(plan_asked(given(asked), now_s=_CLOCK.now())), asked)


@limit.command("remove")
@config_option
@_whose
@_key
@click.option("--rule", help="The rule that is no longer to be changed.")
@click.option("--plan", is_flag=True, help="The plan is no longer to be another.")
@format_option
def remove(path: Path | None, form: str, *, plan: bool, **asked: Any) -> None:
    """Remove what was set: of a rule or of the plan, for a tenant or one of its keys."""
    if plan == (asked["rule"] is not None):
        fail("--rule, --plan: give one of them", BAD_CONFIG)
    _show(path, form, lambda desk: desk.remove(place_asked(given(asked), of_rule=not plan)), asked)


@limit.command("show")
@config_option
@click.option("--tenant", help="Only this one. Default: all.")
@_key
@click.option("--model", help="Show what applies to calls of this model with --tenant and --key, and what is used.")
@click.option("--claim", help="The plan that the token claims. Default: an API key's own. With --model.")
@format_option
def show(path: Path | None, form: str, model: str | None, claim: str | None, **asked: Any) -> None:
    """Show what was set; or all that applies to one key and model."""
    if model is None:
        _show(path, form, lambda desk: desk.entries(), asked)
    elif None in asked.values():
        fail("--model: give --tenant and --key too", BAD_CONFIG)
    else:
        settings = _load(path)
        tenant, key = asked["tenant"], asked["key"]
        work = _applied(settings, Principal(tenant, key, claim or settings.auth.plan_of(tenant, key)), model)
        show_rows(at_store(path, work), form, _APPLIED, _applied_cells)


def _show(path: Path | None, form: str, ask: _Ask, asked: dict[str, Any]) -> None:
    """Do what is asked of the desk, and print what is kept then for the tenant that is meant."""
    entries = at_store(path, _at_desk(_load(path), ask))
    found = ROWS.of(entries, tenant=asked["tenant"], key=asked["key"], now_s=_CLOCK.now())
    show_rows(found, form, ROWS.columns, ROWS.texts)


def _load(path: Path | None) -> Config:
    return load_shared(path, "overrides are in the gateway's memory; use its /admin/limits instead")


async def _at_desk(settings: Config, ask: _Ask) -> Iterable[Entry[Override]]:
    kept = RedisSettings(settings.limits.store, OVERRIDES)
    try:
        return await ask(Desk(kept, settings.limits, _CLOCK))
    finally:
        await kept.close()


async def _applied(settings: Config, principal: Principal, name: str) -> list[_Row]:
    limits = settings.limits
    model, pool = model_asked(name, settings.models)
    rulebook = Rulebook(limits)
    overrides = Overrides(limits, rulebook, _CLOCK)
    entries = await _at_desk(settings, Desk.entries)
    overrides.take({entry.name: entry.value for entry in entries})
    overrides.close()
    found = rulebook.applying(principal, model=model, pool=pool)
    used = await used_of(RedisLevels(limits.store).used, found.limits)
    return [{"plan": found.plan} | row for row in applied(found, used, overrides.holding, limits=limits)]


def _applied_cells(row: _Row) -> list[object]:
    return ["" if row[name] is None else row[name] for name in _APPLIED]
