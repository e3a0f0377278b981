"""/admin/revocations: which keys and tokens are revoked, for all who reach this listener; changes.

Changes are taken from this machine only, and from no web page: there is no token here.
"""

from collections.abc import Awaitable, Iterable

from aiohttp import web

from gateway.admin.asking import check_origin, members_of, once
from gateway.admin.kept import changed, kept_or_known, page
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.settings import Settings
from gateway.admission.settings.shelf import Shelf
from gateway.admission.settings.watcher import Watcher
from gateway.clock import Clock
from gateway.revocations.revocation import Revocation, asked, judge, place_asked
from gateway.revocations.revocations import Revocations
from gateway.revocations.rows import ROWS


class RevocationPages:
    """Shows and changes what `settings` keep. `watcher` has this process follow a change at once."""

    def __init__(self, settings: Settings, revocations: Revocations, *, watcher: Watcher, clock: Clock) -> None:
        self._shelf = Shelf(settings, judge, clock, what="revocation")
        self._revocations = revocations
        self._watcher = watcher
        self._clock = clock

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them there."""
        router.add_get("/admin/revocations", self._list)
        router.add_put("/admin/revocations", self._put)
        router.add_delete("/admin/revocations", self._remove)

    async def _list(self, request: web.Request) -> web.Response:
        tenant = once(request, ("tenant",)).get("tenant")
        entries, current = await kept_or_known(self._shelf.entries(), self._revocations.entries)
        return self._page(entries, tenant, current=current)

    async def _put(self, request: web.Request) -> web.Response:
        check_origin(request)
        revocation = asked(await members_of(request), now_s=self._clock.now())
        return await self._changed(self._shelf.put(revocation.name, revocation.value()), revocation.tenant)

    async def _remove(self, request: web.Request) -> web.Response:
        check_origin(request)
        given = once(request, ("tenant", "key", "jti"))
        return await self._changed(self._shelf.remove(place_asked(given)), given["tenant"])

    async def _changed(self, change: Awaitable[list[Entry[Revocation]]], tenant: str) -> web.Response:
        return self._page(await changed(change, self._watcher), tenant, current=True)

    def _page(self, entries: Iterable[Entry[Revocation]], tenant: str | None, *, current: bool) -> web.Response:
        return page(ROWS.of(entries, tenant=tenant, now_s=self._clock.now()), current=current)
