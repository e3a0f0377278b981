"""/admin/ and /admin/status: how this gateway does, at a glance, as a page and as JSON; it asks what others know.

There are no orders here: a page in a browser gives none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

import gateway
from gateway.admin import numbers
from gateway.admin.asking import once
from gateway.admin.page import HEADERS, page
from gateway.admin.recent import Recent
from gateway.admin.trouble import trouble
from gateway.admission.settings.members import iso
from gateway.clock import Clock
from gateway.telemetry.figures import Figures

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """What the other pages say: `/readyz`, `/admin/config` of each worker, `/admin/pools`; and what a scrape shows.

    `silent` are workers that gave no answer.
    """

    readiness: Json
    configs: list[Json]
    pools: Json
    figures: Figures
    silent: list[int] = field(default_factory=list)


class StatusPages:
    """Shows what `gather` returns. Whoever scrapes is told to `note` what was counted."""

    def __init__(self, gather: Callable[[], Awaitable[Told]], clock: Clock) -> None:
        self._gather = gather
        self._clock = clock
        self._recent = Recent()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them there."""
        router.add_get("/admin", _to_the_page)
        router.add_get("/admin/", self._page)
        router.add_get("/admin/status", self._json)

    async def note(self, figures: Figures) -> None:
        """Take note of what was counted until now, so that what comes later can be shown."""
        counted = await asyncio.to_thread(numbers.amiss, figures)
        self._recent.note(self._clock.now(), counted)

    async def _page(self, request: web.Request) -> web.Response:
        status = await self._status(request)
        text = await asyncio.to_thread(page, status)
        return web.Response(text=text, content_type="text/html", charset="utf-8", headers=HEADERS)

    async def _json(self, request: web.Request) -> web.Response:
        return web.json_response(await self._status(request))

    async def _status(self, request: web.Request) -> Json:
        once(request, ())
        told = await self._gather()
        counted = await asyncio.to_thread(numbers.amiss, told.figures)
        now_s = self._clock.now()
        lately = self._recent.since(now_s, counted)
        self._recent.note(now_s, counted)
        since, came = (None, None) if lately is None else (iso(int(lately[0])), lately[1])
        status: Json = {
            "object": "status",
            "at": iso(int(now_s)),
            "version": gateway.__version__,
            "status": told.readiness["status"],
            "checks": told.readiness["checks"],
            "silent_workers": told.silent,
            "workers": numbers.workers(told.figures),
            "configs": told.configs,
            "calls": numbers.calls(told.figures),
            "amiss": {
                "since": since,
                "data": [
                    {"by": by, "what": what, "total": total, "lately": None if came is None else came[by, what]}
                    for (by, what), total in sorted(counted.items())
                ],
            },
            "defects": numbers.defects(told.figures),
            "store": numbers.store(told.figures),
            "issuers": numbers.issuers(told.figures),
            "current": told.pools["current"],
            "pools": told.pools["data"],
            "orders": told.pools["orders"],
        }
        return status | {"trouble": trouble(status)}


async def _to_the_page(_request: web.Request) -> web.Response:
    """Lead there, also through a proxy that serves it under another path."""
    return web.Response(status=308, headers={"Location": "admin/"})
