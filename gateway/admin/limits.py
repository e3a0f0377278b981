"""/admin/limits: which overrides there are and what applies to whom, for all who reach this listener; changes.

Changes are taken from this machine only, and from no web page: there is no token here.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

from gateway import config
from gateway.admin.asking import check_origin, members_of, once
from gateway.admin.kept import changed, kept_or_known, page
from gateway.admission.overrides.applied import ReadUsed, applied, model_asked, used_of
from gateway.admission.overrides.asked import place_asked, plan_asked, rule_asked
from gateway.admission.overrides.desk import Desk
from gateway.admission.overrides.override import Override
from gateway.admission.overrides.overrides import Overrides
from gateway.admission.overrides.rows import ROWS
from gateway.admission.rules import Rulebook
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.members import name_in
from gateway.admission.settings.watcher import Watcher
from gateway.clock import Clock
from gateway.identity.principal import Principal


class LimitPages:
    """Shows and changes overrides. `watcher` has this process follow a change at once; `used` reads what is used."""

    def __init__(
        self,
        settings: config.Config,
        desk: Desk,
        *,
        overrides: Overrides,
        watcher: Watcher,
        rulebook: Rulebook,
        used: ReadUsed,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._desk = desk
        self._overrides = overrides
        self._watcher = watcher
        self._rulebook = rulebook
        self._used = used
        self._clock = clock

    def configure(self, settings: config.Config) -> None:
        """Go by this config from now on."""
        self._settings = settings
        self._desk.configure(settings.limits)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them there."""
        router.add_get("/admin/limits", self._list)
        router.add_get("/admin/limits/applied", self._applied)
        router.add_put("/admin/limits/rules", self._put_rule)
        router.add_delete("/admin/limits/rules", self._remove_rule)
        router.add_put("/admin/limits/plans", self._put_plan)
        router.add_delete("/admin/limits/plans", self._remove_plan)

    async def _list(self, request: web.Request) -> web.Response:
        asked = once(request, ("tenant", "key"))
        entries, current = await kept_or_known(self._desk.entries(), self._overrides.entries)
        return self._page(entries, asked, current=current)

    async def _applied(self, request: web.Request) -> web.Response:
        asked = once(request, ("tenant", "key", "model", "plan"))
        model, pool = model_asked(name_in(asked, "model"), self._settings.models)
        tenant, key = name_in(asked, "tenant"), name_in(asked, "key")
        principal = Principal(tenant, key, asked.get("plan") or self._settings.auth.plan_of(tenant, key))
        found = self._rulebook.applying(principal, model=model, pool=pool)
        used = await used_of(self._used, found.limits)
        data = list(applied(found, used, self._overrides.holding, limits=self._settings.limits))
        return web.json_response({"object": "list", "model": model, "plan": found.plan, "data": data})

    async def _put_rule(self, request: web.Request) -> web.Response:
        return await self._put(request, rule_asked)

    async def _put_plan(self, request: web.Request) -> web.Response:
        return await self._put(request, plan_asked)

    async def _remove_rule(self, request: web.Request) -> web.Response:
        return await self._remove(request, of_rule=True)

    async def _remove_plan(self, request: web.Request) -> web.Response:
        return await self._remove(request, of_rule=False)

    async def _put(self, request: web.Request, read: Callable[..., Override]) -> web.Response:
        check_origin(request)
        override = read(await members_of(request), now_s=self._clock.now())
        whose = {"tenant": override.tenant, "key": override.key}
        return await self._changed(self._desk.put(override), whose)

    async def _remove(self, request: web.Request, *, of_rule: bool) -> web.Response:
        check_origin(request)
        asked = once(request, ("tenant", "key", "rule") if of_rule else ("tenant", "key"))
        name = place_asked(asked, of_rule=of_rule)
        return await self._changed(self._desk.remove(name), {"tenant": asked.get("tenant"), "key": asked.get("key")})

    async def _changed(self, change: Awaitable[list[Entry[Override]]], whose: Mapping[str, str | None]) -> web.Response:
        return self._page(await changed(change, self._watcher), whose, current=True)

    def _page(
        self, entries: Iterable[Entry[Override]], whose: Mapping[str, str | None], *, current: bool
    ) -> web.Response:
        return page(ROWS.of(entries, now_s=self._clock.now(), **whose), current=current)
