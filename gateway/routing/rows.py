"""Orders and pools in, rows for whoever looks at them out: as JSON has them, and as text."""

from collections.abc import Iterable, Iterator
from typing import Any

from gateway.admission.settings.entry import Entry, state_of
from gateway.admission.settings.members import iso
from gateway.config.pools import address
from gateway.routing.order import Order
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica

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


def pool_row(pool: Pool) -> dict[str, Any]:
    """Return a pool as it is in this process, with all its replicas."""
    sources: dict[str, str] = {}  # where several have it there, what the last of these says of it holds
    for source, entries in (("discovery", pool.found), ("config", pool.listed), ("order", pool.orders.added)):
        sources.update(dict.fromkeys((address(entry.url) for entry in entries), source))
    return {
        "name": pool.name,
        "engine": pool.engine,
        "replicas": [_replica(pool, one) | {"from": sources[one.url]} for one in pool.replicas],
        "leaving": [{"replica": one.name, "url": one.url, "in_flight": one.in_flight} for one in pool.leaving],
    }


def _replica(pool: Pool, replica: Replica) -> dict[str, Any]:
    rests_s = max(0.0, replica.rests_until - pool.now())
    pace = replica.pace.tokens_in(1, choices=1)
    return {
        "replica": replica.name,
        "url": replica.url,
        "state": _state(replica, rests=rests_s > 0),
        "up": replica.up,
        "drained": replica.drained,
        "breaker_open": replica.breaker.open,
        "rests_for_s": round(rests_s, 1),
        "in_flight": replica.in_flight,
        "weight": round(replica.weight, 3),
        "tokens_per_second": pace or None,
    }


def _state(replica: Replica, *, rests: bool) -> str:
    """Return the first of what keeps calls from it, or `up`."""
    if replica.drained:
        return "drained"
    if not replica.up:
        return "down"
    if replica.breaker.open:
        return "breaker_open"
    if rests:
        return "resting"
    return "up" if replica.warming_since is None else "warming_up"


def _order(entry: Entry[Order]) -> tuple[str, str, str]:
    order = entry.setting
    return (entry.name, "", "") if order is None else (order.pool, order.entry.url, order.what)
