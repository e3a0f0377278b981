"""The standing orders of one running gateway: what is kept in the store in, what each pool makes of it out."""

from collections.abc import Collection, Iterable

from gateway.admission.settings.entry import Entry
from gateway.admission.settings.in_force import InForce
from gateway.admission.settings.members import iso
from gateway.clock import Clock
from gateway.routing.orders.order import Order, judge
from gateway.routing.orders.orders import Orders
from gateway.routing.pools import Pools

# Their name among the settings that a store keeps.
ORDERS = "orders"


class StandingOrders(InForce[Order]):
    """Has the pools go by what holds. An order for a pool that there is not waits for one."""

    def __init__(self, pools: Pools, clock: Clock) -> None:
        super().__init__(clock, what="order")
        self._pools = pools

    def judge(self, name: str, value: bytes) -> Entry[Order]:
        """Hold it against the pools that there are."""
        return judge(name, value, self._pools)

    def said(self, setting: Order) -> str:
        """Return what is ordered."""
        return setting.what if setting.until is None else f"{setting.what} until {iso(setting.until)}"

    def follow(self, changed: Collection[Order]) -> None:
        """Have the pools follow whose orders are others."""
        for name in {order.pool for order in changed} & self._pools.keys():
            self._pools[name].order(orders_of(name, self.holding))


def orders_of(pool: str, holding: Iterable[Order]) -> Orders:
    """Return what those of them make together that are for `pool`."""
    its = [order for order in holding if order.pool == pool]
    return Orders(
        added=tuple(order.entry for order in its if order.what == "added"),
        removed=frozenset(order.entry.url for order in its if order.what == "removed"),
        drained=frozenset(order.entry.url for order in its if order.what == "drained"),
    )
