"""`gateway replica`: orders for replicas in the store that the config names, whether or not a gateway runs."""

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from gateway.admission.redis.settings import RedisSettings
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.shelf import Shelf
from gateway.clock import SystemClock
from gateway.commands.command import at_store, config_option, format_option, given, load_shared, show_rows
from gateway.config import Config, ReplicaEntry
from gateway.config.pools import address
from gateway.routing.orders.order import Order, asked, check, judge, place_asked
from gateway.routing.orders.orders import Orders
from gateway.routing.orders.rows import ROWS
from gateway.routing.orders.standing import ORDERS, orders_of

_CLOCK = SystemClock()

_Ask = Callable[[Shelf[Entry[Order]]], Coroutine[Any, Any, list[Entry[Order]]]]

_Command = Callable[..., None]

_pool = click.option("--pool", required=True, help="The pool, by its name in the config.")
_url = click.option("--url", required=True, help="The replica, such as http://10.0.0.5:8000.")
_for = click.option("--for", help="How long, such as 1h. Default: until it is taken back.")


def _of_one(command: _Command) -> _Command:
    """Give a command the options of all that concern one replica."""
    return config_option(_pool(_url(format_option(command))))


@click.group()
def replica() -> None:
    """Drain, add and remove replicas in every gateway, while they run."""


@replica.command("list")
@config_option
@click.option("--pool", help="Only those for this pool. Default: all.")
@format_option
def listed(path: Path | None, form: str, pool: str | None) -> None:
    """Show what was ordered. How replicas do, each gateway says itself: GET /admin/pools."""
    _show(path, form, pool, lambda _settings: Shelf.entries)


@replica.command()
@_of_one
@_for
def drain(path: Path | None, form: str, **options: Any) -> None:
    """Send no more calls to a replica; those under way end as they would."""
    _put(path, form, options | {"order": "drained"})


@replica.command()
@_of_one
def undrain(path: Path | None, form: str, **options: Any) -> None:
    """Send calls to a drained replica again."""
    _take_back(path, form, options | {"order": "drained"})


@replica.command()
@_of_one
@click.option("--weight", type=float, help="Its share of the calls, beside others. Default: 1.")
@click.option("--served-name", help="The model's name there, if it is another.")
@click.option("--server-name", help="What it is called in TLS and in Host, where its URL has an address.")
@click.option("--max-in-flight", type=int, help="Calls that it has at a time from one gateway process; more wait.")
@_for
def add(path: Path | None, form: str, **options: Any) -> None:
    """Have a replica in a pool that the config does not list, or lists otherwise."""
    _put(path, form, options | {"order": "added"})


@replica.command()
@_of_one
@_for
def remove(path: Path | None, form: str, **options: Any) -> None:
    """Have a replica in a pool no longer, although it is listed; calls under way end as they would."""
    _put(path, form, options | {"order": "removed"})


@replica.command()
@_of_one
def restore(path: Path | None, form: str, **options: Any) -> None:
    """Take back that a replica was added or removed: it is in the pool if it is listed."""
    _take_back(path, form, options | {"order": "added"})


def _put(path: Path | None, form: str, options: dict[str, Any]) -> None:
    strange: list[str] = []

    def work(settings: Config) -> _Ask:
        async def ask(shelf: Shelf[Entry[Order]]) -> list[Entry[Order]]:
            order = asked(given(options), now_s=_CLOCK.now())
            check(order, settings.pools)
            if order.what != "added" and _is_strange(order, settings, await shelf.entries()):
                strange.append(order.entry.url)
            return await shelf.put(order.name, order.value())

        return ask

    _show(path, form, options["pool"], work)
    for url in strange:
        click.echo(f"Warning: pool {options['pool']} has no replica {url} so far.", err=True)


def _take_back(path: Path | None, form: str, options: dict[str, Any]) -> None:
    async def ask(shelf: Shelf[Entry[Order]]) -> list[Entry[Order]]:
        return await shelf.remove(place_asked(options))

    _show(path, form, options["pool"], lambda _settings: ask)


def _show(path: Path | None, form: str, pool: str | None, work: Callable[[Config], _Ask]) -> None:
    """Do what is asked at the store, print what is ordered then, and warn of a pool that takes no calls by that."""
    settings = load_shared(path, "orders are in the gateway's memory; use its /admin/pools instead")
    entries = at_store(path, _at_shelf(settings, work(settings)))
    now_s = _CLOCK.now()
    show_rows(ROWS.of(entries, pool=pool, now_s=now_s), form, ROWS.columns, ROWS.texts)
    for name in settings.pools if pool is None else settings.pools.keys() & {pool}:
        orders, there = _there(settings, name, entries, now_s)
        if there is not None and orders.holds_all(there):
            click.echo(f"Warning: pool {name} has no replica left that takes calls.", err=True)


def _is_strange(order: Order, settings: Config, entries: Iterable[Entry[Order]]) -> bool:
    """Whether the pool has no such replica, so that the URL may be mistyped."""
    _, there = _there(settings, order.pool, entries, _CLOCK.now())
    return there is not None and order.entry.url not in {address(entry.url) for entry in there}


def _there(
    settings: Config, pool: str, entries: Iterable[Entry[Order]], now_s: float
) -> tuple[Orders, tuple[ReplicaEntry, ...] | None]:
    """Return the orders for a pool, and the replicas that it has by them: None where its discovery finds some."""
    orders = orders_of(pool, [one.setting for one in entries if one.setting is not None and one.holds(now_s)])
    entry = settings.pools[pool]
    return orders, None if entry.discovery else orders.applied_to(entry.replicas)


async def _at_shelf(settings: Config, ask: _Ask) -> list[Entry[Order]]:
    kept = RedisSettings(settings.limits.store, ORDERS)
    try:
        return await ask(Shelf(kept, partial(judge, pools=settings.pools), _CLOCK, what="order"))
    finally:
        await kept.close()
