"""`gateway revoke`: revokes keys and tokens in the store that the config names, whether or not a gateway runs."""

from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import click

from gateway.admission.redis.settings import RedisSettings
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.shelf import Shelf
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
from gateway.revocations.revocation import Revocation, asked, judge, place_asked
from gateway.revocations.revocations import REVOCATIONS
from gateway.revocations.rows import ROWS

_CLOCK = SystemClock()

_Ask = Callable[[Shelf[Entry[Revocation]]], Coroutine[Any, Any, Iterable[Entry[Revocation]]]]


@click.command()
@config_option
@click.option("--tenant", help="Whose. Alone: all tokens of the tenant.")
@click.option("--key", help="Only the tokens of this key.")
@click.option("--jti", help="Only the token of this id.")
@click.option("--for", help="How long, such as 2h. Default: until it is undone.")
@click.option("--reason", help="Why; shown to operators only.")
@click.option("--undo", is_flag=True, help="Accept what was revoked again.")
@click.option("--list", "listed", is_flag=True, help="Change nothing.")
@format_option
def revoke(path: Path | None, form: str, *, undo: bool, listed: bool, **options: Any) -> None:
    """Refuse a tenant's tokens, those of one key, or one token, in every gateway. Show what is refused so."""
    members = given(options)
    if undo and listed:
        fail("--undo, --list: give one of them", BAD_CONFIG)
    if not listed and options["tenant"] is None:
        fail("--tenant: missing; --list shows what is revoked", BAD_CONFIG)
    if listed and members.keys() - {"tenant"}:
        fail(f"--{min(members.keys() - {'tenant'})}: not with --list", BAD_CONFIG)

    async def ask(shelf: Shelf[Entry[Revocation]]) -> Iterable[Entry[Revocation]]:
        if listed:
            return await shelf.entries()
        if undo:
            return await shelf.remove(place_asked(members))
        revocation = asked(members, now_s=_CLOCK.now())
        return await shelf.put(revocation.name, revocation.value())

    settings = load_shared(path, "revocations are in the gateway's memory; use its /admin/revocations instead")
    entries = at_store(path, _at_shelf(settings.limits.store, ask))
    show_rows(ROWS.of(entries, tenant=options["tenant"], now_s=_CLOCK.now()), form, ROWS.columns, ROWS.texts)


async def _at_shelf(store: str, ask: _Ask) -> Iterable[Entry[Revocation]]:
    kept = RedisSettings(store, REVOCATIONS)
    try:
        return await ask(Shelf(kept, judge, _CLOCK, what="revocation"))
    finally:
        await kept.close()
