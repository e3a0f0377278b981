"""Orders in, rows for whoever looks at them out: as JSON has them, and as text."""

from collections.abc import Iterable, Iterator
from typing import Any

from gateway.admission.settings.entry import Entry, state_of
from gateway.admission.settings.members import iso
from gateway.routing.orders.order import Order

COLUMNS = ("pool", "url", "order", "weight", "set_at", "until", "state")


def rows(entries: Iterable[Entry[Order]], *, pool: str | None, now_s: float) -> Iterator[dict[str, Any]]:
    """Yield the orders for a pool, or all, with whether each is in force, and if not, why.

    Which pool an unreadable one is for, nobody knows: it is shown with all only.
    """
    for entry in sorted(entries, key=_order):
        order = entry.setting
        if pool is not None and (order is None or order.pool != pool):
            continue
        if order is None:
            row: dict[str, Any] = {"name": entry.name}
        else:
            row = {"pool": order.pool, "order": order.what} | order.entry.model_dump(exclude_unset=True)
            row |= {"set_at": iso(order.set_at), "until": None if order.until is None else iso(order.until)}
        yield row | entry.standing(now_s)


def cells(row: dict[str, Any]) -> tuple[object, ...]:
    """Return what a table shows of a row of an order, under `COLUMNS`."""
    state = state_of(row)
    if "name" in row:
        return row["name"], "", "", "", "", "", state
    return row["pool"], row["url"], row["order"], row.get("weight", ""), row["set_at"], row["until"] or "", state


def _order(entry: Entry[Order]) -> tuple[str, str, str]:
    order = entry.setting
    return (entry.name, "", "") if order is None else (order.pool, order.entry.url, order.what)
