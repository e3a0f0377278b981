"""The operator listener of several workers: one scrape, one readiness, one status; all else a worker answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway import background
from gateway.admin.listener import ASKED_BY, documented_errors, shown, under_a_name_of_ours
from gateway.admin.readiness import OK
from gateway.admin.status import StatusPages, Told
from gateway.clock import Clock
from gateway.errors import Overloaded, RequestTooLarge
from gateway.telemetry import figures
from gateway.telemetry.figures import Figures
from gateway.workers import pools
from gateway.workers.asked import ask_all
from gateway.workers.crew import Crew
from gateway.workers.merge import merge
from gateway.workers.rounds import Rounds
from gateway.workers.worker import Reply, WorkerSilent

# What a scrape waits for a worker: some ten times what a large one takes, far below a scraper's time limit.
SCRAPE_WITHIN_S = 2.0
# What a probe waits for the first good answer: kubelets wait for 1 s unless told otherwise.
PROBE_WITHIN_S = 0.8
# What a change or a question to the ledger may take.
_PASSED_ON_WITHIN_S = 30.0
# More than a worker takes, so that it is the worker who says what is too large.
_MAX_BODY = 2 << 20
_NOBODY = "No worker of this gateway answers; try again."
# Of one connection only (RFC 9110, 7.6.1), or made anew for the next.
_OF_THE_CONNECTION = frozenset({
    "connection", "content-length", "date", "host", "keep-alive", "server", "te", "trailer", "transfer-encoding",
    "upgrade", ASKED_BY.lower(),
})  # fmt: skip


class Pages:
    """What operators get while `crew` works."""

    def __init__(self, crew: Crew, clock: Clock) -> None:
        self._crew = crew
        self._status = StatusPages(self._told, clock)
        # One after another: of two at once the slower would bring back older figures, and counters would fall.
        self._figures = Rounds(self._told_anew)
        self._own = CollectorRegistry()
        ProcessCollector(registry=self._own)
        self._own.register(CrewCollector(crew))

    def build(self) -> web.Application:
        """Return the application; `web.AppRunner(…, access_log=None)` serves it."""
        app = web.Application(middlewares=[documented_errors, under_a_name_of_ours], client_max_size=_MAX_BODY)
        app.router.add_get("/metrics", self._scrape)
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/admin/pools", self._pools)
        app.router.add_get("/admin/pools/{pool}", self._pools)
        self._status.add_to(app.router)
        app.router.add_route("*", "/{rest:.*}", self._pass_on)
        return app

    async def _scrape(self, request: web.Request) -> web.Response:
        """Show all workers as one. A worker that does not answer in time is shown as it last was."""
        merged = await self._figures.result()
        await self._status.note(merged)
        return await shown(request, lambda: figures.registry_of(merged))

    async def _told_anew(self) -> Figures:
        await asyncio.gather(*[one.tell(within_s=SCRAPE_WITHIN_S) for one in self._crew.workers])
        told, ended = self._crew.figures()
        told.append(figures.of(self._own))
        return await asyncio.to_thread(merge, told, ended)

    async def _pools(self, request: web.Request) -> web.Response:
        """Show the pools of all workers as one gateway's."""
        told = await ask_all(self._crew, request.raw_path)
        if not told.pages:
            if told.refusal is None:
                raise Overloaded(_NOBODY)
            return _as_it_came(told.refusal)
        return web.json_response(pools.of_all(told))

    async def _told(self) -> Told:
        """Return what the page of status shows."""
        merged, ready, configs, told = await asyncio.gather(
            self._figures.result(),
            self._ready(),
            ask_all(self._crew, "/admin/config"),
            ask_all(self._crew, "/admin/pools"),
        )
        shown_configs = [{"worker": worker} | page for worker, page in configs.pages.items()]
        return Told(json.loads(ready.text or ""), shown_configs, pools.of_all(told), merged, told.silent)

    async def _live(self, _request: web.Request) -> web.Response:
        """Answer 200 while any worker's loop runs: a restart of all would take the good ones too."""
        async for reply in self._replies("/livez"):
            if reply.status == web.HTTPOk.status_code:
                return _as_it_came(reply)
        return web.json_response({"status": "no worker answers"}, status=503)

    async def _ready(self, _request: web.Request | None = None) -> web.Response:
        """Answer 200 where any worker can take calls, once all have started; otherwise as one that cannot."""
        not_ready = None
        if why := self._why_not():
            return web.json_response({"status": "not_ready", "checks": why}, status=503)
        async for reply in self._replies("/readyz"):
            if reply.status == web.HTTPOk.status_code:
                return _as_it_came(reply)
            not_ready = reply
        if not_ready is not None:
            return _as_it_came(not_ready)
        return web.json_response({"status": "not_ready", "checks": {"workers": "no worker answers"}}, status=503)

    def _why_not(self) -> dict[str, str] | None:
        """Return the checks of a gateway that is about to stop, or has not started whole."""
        crew = self._crew
        if crew.stopping.is_set():
            return {"draining": "this gateway is about to stop", "workers": OK}
        if not crew.complete:
            return {"draining": OK, "workers": f"{len(crew.workers)} of {crew.size} workers have started"}
        return None

    async def _replies(self, path: str) -> AsyncIterator[Reply]:
        """Yield what workers answer, as it comes."""
        asking = [asyncio.create_task(one.ask("GET", path, within_s=PROBE_WITHIN_S)) for one in self._crew.workers]
        try:
            for reply in asyncio.as_completed(asking):
                try:
                    yield await reply
                except WorkerSilent:
                    continue
        finally:
            await background.end(*asking)

    async def _pass_on(self, request: web.Request) -> web.Response:
        """Let a worker answer: the first that does, so that who changes something sees it in the next answer."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise RequestTooLarge("The body is far larger than a change.") from error
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _OF_THE_CONNECTION]
        asked = {**dict(headers), ASKED_BY: request.remote or ""}
        for one in self._crew.in_turn:
            try:
                reply = await one.ask(
                    request.method, request.raw_path, within_s=_PASSED_ON_WITHIN_S, headers=asked, body=body or None
                )
            except WorkerSilent:
                if request.method in {"GET", "HEAD"}:
                    continue
                raise Overloaded("The worker that was asked did not answer; look whether this was done.") from None
            return _as_it_came(reply)
        raise Overloaded(_NOBODY)


class CrewCollector(Collector):
    """The supervisor's own metrics."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def describe(self) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
        """Return the families without samples."""
        return (
            GaugeMetricFamily(
                "gateway_workers",
                "Worker processes; silent ones did not answer the scrape and are shown as they last were.",
                labels=("state",),
            ),
            CounterMetricFamily("gateway_worker_restarts", "Workers that were started in the place of others."),
        )

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        """Return them as they are now."""
        workers, restarts = self.describe()
        running = self._crew.workers
        silent = sum(one.silent for one in running)
        workers.add_metric(["answering"], len(running) - silent)
        workers.add_metric(["silent"], silent)
        restarts.add_metric([], self._crew.restarts)
        return [workers, restarts]


def _as_it_came(reply: Reply) -> web.Response:
    headers: Mapping[str, str] = {
        name: value for name, value in reply.headers.items() if name.lower() not in _OF_THE_CONNECTION
    }
    return web.Response(status=reply.status, body=reply.body, headers=headers)
