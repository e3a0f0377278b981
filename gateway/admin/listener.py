"""The operator listener: /metrics, /livez and /readyz, cheap and for scrapers and probes; /admin/…. No token.

It never serves a tenant: it has its own address, loopback by default.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

from gateway import errors
from gateway.admin.asking import check_name
from gateway.admin.config import show_config, told_of
from gateway.admin.limits import LimitPages
from gateway.admin.numbers import NAMES
from gateway.admin.pools import PoolPages
from gateway.admin.readiness import READY, Readiness
from gateway.admin.revocations import RevocationPages
from gateway.admin.status import StatusPages, Told
from gateway.admin.usage import show_usage
from gateway.admission.ledger.reader import LedgerReader
from gateway.clock import Clock
from gateway.reload import Reload
from gateway.telemetry import figures
from gateway.telemetry.figures import Figures
from gateway.telemetry.metrics import Metrics

# In what a supervisor passes on: the address of who asked.
ASKED_BY = "Gateway-Asked-By"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build(
    metrics: Metrics,
    readiness: Callable[[], Readiness],
    *,
    ledger: LedgerReader,
    limits: LimitPages,
    revocations: RevocationPages,
    pools: PoolPages,
    reload: Reload,
    clock: Clock,
    behind_supervisor: bool = False,
) -> web.Application:
    """Return the operator listener; `web.AppRunner(…, access_log=None)` serves it.

    `behind_supervisor`: only the supervisor of this process reaches it, and says who asks.
    """
    asked = [_as_asked, documented_errors] if behind_supervisor else [documented_errors, under_a_name_of_ours]
    app = web.Application(middlewares=asked)

    async def told() -> Told:
        return Told(readiness().told(), [told_of(reload)], pools.told(), await _looked_at(metrics.registry))

    status = StatusPages(told, clock)
    app.router.add_get("/metrics", _scrape(metrics.registry, status))
    app.router.add_get("/livez", _live)
    app.router.add_get("/readyz", _ready(readiness))
    app.router.add_get("/admin/config", show_config(reload))
    app.router.add_get("/admin/usage", show_usage(ledger))
    limits.add_to(app.router)
    revocations.add_to(app.router)
    pools.add_to(app.router)
    status.add_to(app.router)
    return app


async def _looked_at(registry: CollectorRegistry) -> Figures:
    return await asyncio.to_thread(lambda: figures.of(registry.restricted_registry(NAMES)))


def _scrape(registry: CollectorRegistry, status: StatusPages) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        if request.headers.get("Accept") == figures.CONTENT_TYPE:
            body = await asyncio.to_thread(lambda: figures.written(figures.of(registry)))
            return web.Response(body=body, headers={"Content-Type": figures.CONTENT_TYPE})
        await status.note(await _looked_at(registry))
        return await shown(request, lambda: registry)

    return handle


async def shown(request: web.Request, read: Callable[[], CollectorRegistry]) -> web.Response:
    """Answer a scrape with what `read` returns, in the form that is asked for.

    In a thread: 200 tenants are 6000 lines and 60 ms, which no stream should wait for (7 ms at worst this way).
    """
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except TypeError:  # a version in Accept that is no number
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    body = await asyncio.to_thread(lambda: encode(read()))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def _live(_request: web.Request) -> web.Response:
    """Answer 200 whenever the loop runs: restarting helps against nothing else."""
    return web.json_response({"status": "live"})


def _ready(readiness: Callable[[], Readiness]) -> Handler:
    async def handle(_request: web.Request) -> web.Response:
        body = readiness().told()
        return web.json_response(body, status=200 if body["status"] == READY else 503)

    return handle


@web.middleware
async def _as_asked(request: web.Request, handler: Handler) -> web.StreamResponse:
    """See the request as it came to the supervisor: from whoever asks there."""
    return await handler(request.clone(remote=request.headers.get(ASKED_BY, "")))


@web.middleware
async def documented_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error the same body as the tenant listener's."""
    try:
        return await handler(request)
    except errors.Refusal as raised:
        refusal = raised
    except web.HTTPNotFound:
        paths = ", ".join(sorted(resource.canonical for resource in request.app.router.resources()))
        refusal = errors.NotFound(f"No such path on the operator listener; it has {paths}.")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = errors.MethodNotAllowed(f"{request.path} takes only {allowed}.", headers={"Allow": allowed})
    headers = {**refusal.headers, "Content-Type": errors.CONTENT_TYPE}
    return web.Response(status=refusal.status, body=refusal.body(), headers=headers)


@web.middleware
async def under_a_name_of_ours(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Guard what is more than figures; who scrapes and probes may do so under any name."""
    if request.path.startswith("/admin"):
        check_name(request)
    return await handler(request)
