"""The operator listener: /metrics, /livez and /readyz, cheap and for scrapers and probes; /admin/…. No token.

It never serves a tenant: it has its own address, loopback by default.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

from gateway import errors
from gateway.admin.config import show_config
from gateway.admin.limits import LimitPages
from gateway.admin.readiness import OK, Readiness
from gateway.admin.revocations import RevocationPages
from gateway.admin.usage import show_usage
from gateway.admission.ledger.reader import LedgerReader
from gateway.reload import Reload
from gateway.telemetry.metrics import Metrics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build(
    metrics: Metrics,
    readiness: Callable[[], Readiness],
    *,
    ledger: LedgerReader,
    limits: LimitPages,
    revocations: RevocationPages,
    reload: Reload,
) -> web.Application:
    """Return the operator listener; `web.AppRunner(…, access_log=None)` serves it."""
    app = web.Application(middlewares=[_documented_errors])
    app.router.add_get("/metrics", _scrape(metrics.registry))
    app.router.add_get("/livez", _live)
    app.router.add_get("/readyz", _ready(readiness))
    app.router.add_get("/admin/config", show_config(reload))
    app.router.add_get("/admin/usage", show_usage(ledger))
    limits.add_to(app.router)
    revocations.add_to(app.router)
    return app


def _scrape(registry: CollectorRegistry) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except TypeError:  # a version in Accept that is no number
            encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
        # In a thread: 200 tenants are 6000 lines and 60 ms, which no stream should wait for (7 ms at worst this way).
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    return handle


async def _live(_request: web.Request) -> web.Response:
    """Answer 200 whenever the loop runs: restarting helps against nothing else."""
    return web.json_response({"status": "live"})


def _ready(readiness: Callable[[], Readiness]) -> Handler:
    async def handle(_request: web.Request) -> web.Response:
        checks = readiness().checks()
        ready = all(state == OK for state in checks.values())
        body = {"status": "ready" if ready else "not_ready", "checks": checks}
        return web.json_response(body, status=200 if ready else 503)

    return handle


@web.middleware
async def _documented_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
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
