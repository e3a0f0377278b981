"""How orders are shown to whoever looks at them."""

from typing import Any

from gateway.admission.settings.rows import Rows, words
from gateway.routing.orders.order import SAID, Order


def _members(one: Order) -> dict[str, Any]:
    return {"pool": one.pool, "url": one.entry.url, "order": one.what} | one.said


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["pool"], row["url"], row["order"], words(row, SAID)


ROWS: Rows[Order] = Rows(("pool", "url", "order", "change"), _members, _cells)
