import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway import config
from gateway.admin.asking import _is_loopback
from gateway.admin.limits import LimitPages
from gateway.admin.listener import build
from gateway.admin.pools import PoolPages
from gateway.admin.readiness import Readiness
from gateway.admin.revocations import RevocationPages
from gateway.admission.ledger.reader import LedgerReader
from gateway.admission.memory import MemoryStore
from gateway.admission.overrides.desk import Desk
from gateway.admission.overrides.overrides import Overrides
from gateway.admission.rules import Rulebook
from gateway.admission.settings.memory import MemorySettings
from gateway.admission.settings.watcher import Watcher
from gateway.config import file
from gateway.reload import Reload
from gateway.revocations.revocations import Revocations
from gateway.routing.orders.standing import StandingOrders
from gateway.routing.pools import Pools
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tenants import TenantLabels
from tests.limiting import SetClock

NO_LEDGER = LedgerReader(MemoryStore(SetClock(), lease_s=1).ledger, SetClock())
SETTINGS = config.Config.model_validate(
    {
        "auth": {"development_key": "key.pem"},
        "models": {"m": {"pool": "main"}},
        "pools": {"main": {"replicas": ["http://127.0.0.1:1"]}},
    }
)
Client = TestClient[web.Request, web.Application]


def listener(readiness: Readiness) -> web.Application:
    clock, kept, book = SetClock(), MemorySettings(), Rulebook(SETTINGS.limits)
    overrides = Overrides(SETTINGS.limits, book, clock)
    pages = LimitPages(
        SETTINGS,
        Desk(kept, SETTINGS.limits, clock),
        overrides=overrides,
        watcher=Watcher(kept, overrides.take, clock, what="overrides", failed=lambda: None),
        rulebook=book,
        used=MemoryStore(clock, lease_s=1).used,
        clock=clock,
    )
    revocations = Revocations(lambda _denied: None, clock)
    watcher = Watcher(kept, revocations.take, clock, what="revocations", failed=lambda: None)
    pools = Pools(SETTINGS.pools, random.Random(1), clock)
    orders = StandingOrders(pools, clock)
    metrics = Metrics([], TenantLabels([], max_tenants=1))

    async def take_on(_settings: config.Config) -> bool:
        return True

    return build(
        metrics,
        lambda: readiness,
        ledger=NO_LEDGER,
        limits=pages,
        revocations=RevocationPages(MemorySettings(), revocations, watcher=watcher, clock=clock),
        pools=PoolPages(MemorySettings(), pools, orders, watcher=watcher, clock=clock),
        reload=Reload(
            file.Loaded(SETTINGS, {}), take_on, stopping=lambda: False, clock=clock, observer=metrics.reloads
        ),
        clock=clock,
    )


class Gateway:
    """What the readiness checks ask: each is None while well, else what is wrong."""

    draining: str | None = None
    identity: str | None = None
    pools: str | None = None
    store: str | None = None


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def client(gateway: Gateway, aiohttp_client: Callable[..., Awaitable[Client]]) -> Client:
    readiness = Readiness(lambda: gateway.draining, lambda: gateway.identity, lambda: gateway.pools)
    return await aiohttp_client(listener(readiness))


async def test_a_scrape_is_prometheus_text(client: Client) -> None:
    async with client.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        names = {family.name for family in parse(await answer.text())}
    assert {"gateway_build_info", "process_resident_memory_bytes", "python_info"} <= names


async def test_a_scrape_is_openmetrics_when_asked(client: Client) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5"
    async with client.get("/metrics", headers={"Accept": accept}) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await answer.text()).endswith("# EOF\n")


async def test_an_accept_header_of_nonsense_gets_prometheus_text(client: Client) -> None:
    async with client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=new"}) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")


async def test_ready_names_every_check(client: Client) -> None:
    async with client.get("/readyz") as answer:
        assert answer.status == 200
        assert await answer.json() == {
            "status": "ready",
            "checks": {"draining": "ok", "identity": "ok", "pools": "ok"},
        }


@pytest.mark.parametrize("check", ["draining", "identity", "pools"])
async def test_each_check_alone_makes_it_not_ready_and_says_why(client: Client, gateway: Gateway, check: str) -> None:
    setattr(gateway, check, "wrong")
    async with client.get("/readyz") as answer:
        assert answer.status == 503
        body: dict[str, Any] = await answer.json()
    assert body["status"] == "not_ready"
    assert {name: state for name, state in body["checks"].items() if state != "ok"} == {check: "wrong"}


async def test_readiness_comes_and_goes_while_liveness_stays(client: Client, gateway: Gateway) -> None:
    seen = []
    for gateway.draining in (None, "about to stop", None):
        async with client.get("/readyz") as ready, client.get("/livez") as live:
            seen.append((ready.status, live.status))
    assert seen == [(200, 200), (503, 200), (200, 200)]


async def test_the_store_counts_only_where_it_is_given(
    gateway: Gateway, aiohttp_client: Callable[..., Awaitable[Client]]
) -> None:
    gateway.store = "refused the connection"
    readiness = Readiness(lambda: None, lambda: None, lambda: None, store=lambda: gateway.store)
    client = await aiohttp_client(listener(readiness))
    async with client.get("/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["checks"]["store"] == "refused the connection"


async def test_another_path_is_the_documented_404(client: Client) -> None:
    async with client.get("/v1/models") as answer:
        assert answer.status == 404
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        error = (await answer.json())["error"]
    assert (error["code"], error["error_type"]) == ("not_found", "invalid_request_error")
    assert "/livez, /metrics, /readyz" in error["message"]


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz"])
async def test_another_method_is_the_documented_405(client: Client, path: str) -> None:
    async with client.post(path) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert (await answer.json())["error"]["code"] == "method_not_allowed"


LOCAL = ["localhost", "LOCALHOST.:9090", "gateway.localhost:9090", "127.0.0.1:9090", "[::1]:9090", "10.1.2.3"]
FOREIGN = ["evil.example:9090", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example", "[evil]:9090", ""]


async def test_a_page_whose_name_was_made_to_lead_here_reads_nothing_but_figures(client: Client) -> None:
    async def status(path: str, host: str) -> int:
        async with client.get(path, headers={"Host": host}) as answer:
            return answer.status

    assert {host: await status("/admin/status", host) for host in LOCAL} == dict.fromkeys(LOCAL, 200)
    for path in ("/admin/status", "/admin/", "/%61dmin/", "/admin/usage", "/admin/nowhere"):
        assert {host: await status(path, host) for host in FOREIGN} == dict.fromkeys(FOREIGN, 403)
    assert {path: await status(path, FOREIGN[0]) for path in ("/metrics", "/livez", "/readyz")} == dict.fromkeys(
        ("/metrics", "/livez", "/readyz"), 200
    )


@pytest.mark.parametrize("remote", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_change_limits(remote: str) -> None:
    assert _is_loopback(remote)


@pytest.mark.parametrize(
    "remote", ["10.0.0.1", "192.168.1.1", "::ffff:10.0.0.1", "fe80::1%eth0", "0.0.0.0", "", "unix"]
)
def test_nobody_else_may(remote: str) -> None:
    assert not _is_loopback(remote)
