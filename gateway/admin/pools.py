"""/admin/pools: how pools and replicas do in this process, for all who reach this listener; orders of operators.

Orders are taken from this machine only, and from no web page: there is no token here.
"""

from collections.abc import Awaitable, Sequence
from typing import Any

from aiohttp import web

from gateway.admin.asking import check_origin, members_of, once
from gateway.admin.kept import changed, page
from gateway.admin.trouble import CURRENT_S
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.members import shown
from gateway.admission.settings.settings import Settings
from gateway.admission.settings.shelf import Shelf
from gateway.admission.settings.watcher import Watcher
from gateway.clock import Clock
from gateway.errors import NotFound
from gateway.routing.orders.order import Order, asked, place_asked
from gateway.routing.orders.rows import ROWS
from gateway.routing.orders.standing import StandingOrders
from gateway.routing.pools import Pools
from gateway.routing.status import status_of


class PoolPages:
    """Shows `pools`, and changes the orders that `settings` keep. `watcher` has this process follow at once."""

    def __init__(
        self, settings: Settings, pools: Pools, orders: StandingOrders, *, watcher: Watcher, clock: Clock
    ) -> None:
        self._shelf = Shelf(settings, orders.judge, clock, what="order")
        self._pools = pools
        self._orders = orders
        self._watcher = watcher
        self._clock = clock

    def told(self) -> dict[str, Any]:
        """Return all pools as they are now, and what is ordered."""
        orders = ROWS.of(self._orders.entries, now_s=self._clock.now())
        pools = list(map(status_of, self._pools.values()))
        return {"object": "list", "current": self._watcher.age_s < CURRENT_S, "orders": orders, "data": pools}

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them there."""
        router.add_get("/admin/pools", self._list)
        router.add_get("/admin/pools/{pool}", self._show)
        router.add_put("/admin/pools/{pool}/replicas", self._put)
        router.add_delete("/admin/pools/{pool}/replicas", self._remove)

    async def _list(self, request: web.Request) -> web.Response:
        once(request, ())
        return web.json_response(self.told())

    async def _show(self, request: web.Request) -> web.Response:
        once(request, ())
        name = self._known(request)
        orders = ROWS.of(self._orders.entries, pool=name, now_s=self._clock.now())
        current = self._watcher.age_s < CURRENT_S
        return web.json_response(
            {"object": "pool", "current": current} | status_of(self._pools[name]) | {"orders": orders}
        )

    async def _put(self, request: web.Request) -> web.Response:
        check_origin(request)
        name = self._known(request)
        order = asked({**await members_of(request), "pool": name}, now_s=self._clock.now())
        its = {replica.url for replica in self._pools[name].replicas}
        strange = order.what != "added" and order.entry.url not in its
        warning = [f"Pool {shown(name)} has no replica {order.entry.url} so far."] if strange else []
        return await self._changed(self._shelf.put(order.name, order.value()), name, warning)

    async def _remove(self, request: web.Request) -> web.Response:
        check_origin(request)
        name = request.match_info["pool"]
        order = place_asked({**once(request, ("url", "order")), "pool": name})
        return await self._changed(self._shelf.remove(order), name)

    async def _changed(
        self, change: Awaitable[list[Entry[Order]]], name: str, warnings: Sequence[str] = ()
    ) -> web.Response:
        found = ROWS.of(await changed(change, self._watcher), pool=name, now_s=self._clock.now())
        pool = self._pools.get(name)
        if pool is not None and all(replica.drained for replica in pool.replicas):
            warnings = [*warnings, f"Pool {shown(name)} has no replica left that takes calls."]
        told: dict[str, Any] = {"warning": " ".join(warnings)} if warnings else {}
        return page(found, current=True, **told)

    def _known(self, request: web.Request) -> str:
        name = request.match_info["pool"]
        if name not in self._pools:
            raise NotFound(f"There is no pool {shown(name)}; there are {', '.join(self._pools)}.")
        return name
