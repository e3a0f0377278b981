"""The composition root: every part is made here, started in order and stopped in reverse."""

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from gateway import config, stores
from gateway.admin import listener as operator
from gateway.admin.limits import LimitPages
from gateway.admin.pools import PoolPages
from gateway.admin.readiness import Readiness
from gateway.admin.revocations import RevocationPages
from gateway.admission.admission import Admission
from gateway.admission.ledger.reader import LedgerReader
from gateway.admission.overrides.desk import Desk
from gateway.admission.overrides.overrides import OVERRIDES, Overrides
from gateway.admission.settings.settings import Settings
from gateway.admission.settings.watcher import Watcher
from gateway.client.clients import Clients
from gateway.client.port import BACKLOG, KEY, Given, Port, bind, explained
from gateway.clock import Clock
from gateway.config import file
from gateway.identity.authenticate import Authenticator
from gateway.identity.header import MAX_FIELD_BYTES
from gateway.identity.keys import KeySetUnusable
from gateway.listener import Listener
from gateway.models import ModelPages
from gateway.outbox import Outbox
from gateway.pipeline import Pipeline, Serving
from gateway.relay.upstream import Upstream
from gateway.reload import Reload
from gateway.revocations.revocations import REVOCATIONS, Revocations
from gateway.routing.catalog import Catalog
from gateway.routing.discovery.discovery import Discovery
from gateway.routing.health import Prober
from gateway.routing.host_names import HostNames
from gateway.routing.load_poller import LoadPoller
from gateway.routing.orders.standing import ORDERS, StandingOrders
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools
from gateway.telemetry import figures, logs
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.lag import LoopLag
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.replicas import ReplicaState
from gateway.telemetry.settings import SettingsState
from gateway.telemetry.tenants import TenantLabels
from gateway.telemetry.writer import LineWriter
from gateway.usage import UsagePage

_log = logging.getLogger(__name__)

_IDS_AT_ONCE = 256
# What is left for handlers after the drain: each was told to end already.
_LEFTOVERS_S = 0.5


class Gateway:
    """One gateway process: made inside its event loop, started once, stopped once. `writer` stays its giver's.

    `clock` and the event loop go at the same pace. A config that was `loaded` from a file can be read again.
    A worker is `given` what to listen on. `accepted` is told each config that holds from then on.

    Raises:
        JournalUnusable: `limits.journal` names no directory that a journal can be kept in.
    """

    def __init__(
        self,
        loaded: file.Loaded,
        writer: LineWriter,
        clock: Clock,
        given: Given | None = None,
        *,
        accepted: Callable[[file.Loaded], object] | None = None,
    ) -> None:
        self._chance = chance = random.Random()  # noqa: S311 spreads load, guards nothing
        self._settings = settings = loaded.settings
        self._given = given
        self._writer = writer
        self._clock = clock
        self._leaving = False
        self._hurry = asyncio.Event()
        self._running = AsyncExitStack()
        self._metrics = Metrics(
            settings.models, TenantLabels(settings.limits.tenants, max_tenants=settings.metrics.max_tenants)
        )
        store = stores.counts(settings.limits, clock, self._metrics)
        self._admission = Admission(settings.limits, store, clock, observer=self._metrics)
        self._ledger = LedgerReader(store.ledger, clock)
        kept = stores.settings(settings.limits.store, OVERRIDES)
        self._overrides = Overrides(settings.limits, self._admission.rulebook, clock)
        self._watcher = self._watch(kept, self._overrides.take, OVERRIDES, clock)
        self._limit_pages = LimitPages(
            settings,
            Desk(kept, settings.limits, clock),
            overrides=self._overrides,
            watcher=self._watcher,
            rulebook=self._admission.rulebook,
            used=stores.levels(settings.limits.store, store),
            clock=clock,
        )
        self._metrics.watch_settings(self._settings_kept)
        # No limit in all (aiohttp's is 100): who asks bounds itself, and a service that hangs must not hold up probes.
        # No cookies: what an identity service or an engine sets for one caller must not come with the next one's.
        self._names = names = HostNames()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, resolver=names),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._pools = Pools(settings.pools, chance, clock)
        self._metrics.watch_replicas(self._replicas)
        self._metrics.watch_waiting(self._pools.waiting)
        self._forgetting: asyncio.Handle | None = None
        self._pools.follow(self._forget_later)
        ordered = stores.settings(settings.limits.store, ORDERS)
        self._orders = StandingOrders(self._pools, clock)
        self._order_watcher = self._watch(ordered, self._orders.take, ORDERS, clock)
        self._pool_pages = PoolPages(ordered, self._pools, self._orders, watcher=self._order_watcher, clock=clock)
        self._discovery = Discovery(self._pools, self._session, chance, clock, observe=self._metrics.discovery_refresh)
        self._metrics.watch_discovery(lambda: self._discovery.ages_s)
        self._authenticator = Authenticator(
            settings.auth,
            self._session,
            clock=clock,
            observe=self._metrics.key_set_refresh,
            asked=self._metrics.identity_asked,
        )
        self._metrics.watch_key_sets(self._authenticator.key_set_ages)
        revoked = stores.settings(settings.limits.store, REVOCATIONS)
        self._revocations = Revocations(self._authenticator.deny, clock)
        self._revocation_watcher = self._watch(revoked, self._revocations.take, REVOCATIONS, clock)
        self._revocation_pages = RevocationPages(
            revoked, self._revocations, watcher=self._revocation_watcher, clock=clock
        )
        outbox = Outbox(asyncio.get_running_loop())
        self._upstream = Upstream(clock, outbox, names)
        self._pools.follow(self._upstream.follow)
        self._prober = Prober(self._pools, self._session, chance)
        self._load_poller = LoadPoller(self._pools, self._session, chance)
        self._lag = LoopLag(self._metrics.event_loop_lag, clock)
        self._pipeline = Pipeline(
            self._authenticator,
            self._serving(settings),
            admission=self._admission,
            upstream=self._upstream,
            metrics=self._metrics,
            access_log=AccessLog(settings.logging, writer.write),
            clock=clock,
            new_id=_ids().__next__,
            body_budget=settings.server.body_budget,
        )
        self._metrics.watch_estimates(self._bytes_per_token)
        self._clients = Clients(
            Listener(self._pipeline, ModelPages(self._pipeline), usage=UsagePage(self._ledger, self._pipeline)),
            self._pipeline.malformed,
            outbox=outbox,
            head_timeout_s=settings.requests.head_timeout,
            write_timeout_s=settings.server.write_timeout,
            max_field=MAX_FIELD_BYTES,
        )
        self._reload = Reload(
            loaded,
            self._take_on,
            stopping=lambda: self._leaving,
            clock=clock,
            observer=self._metrics.reloads,
            accepted=accepted,
        )

    async def start(self) -> tuple[int, int]:
        """Start every part and listen; return the ports of the tenant and the operator listener.

        Raises:
            CannotListen: an address cannot be had.
            DevelopmentKeyUnusable: `auth.development_key` names no usable key.
        """
        async with AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            stack.callback(loop.set_exception_handler, loop.get_exception_handler())
            loop.set_exception_handler(self._note_failure)
            stack.push_async_callback(self._names.close)
            stack.push_async_callback(self._session.close)
            stack.callback(self._overrides.close)
            stack.callback(self._revocations.close)
            stack.callback(self._orders.close)
            watchers = (self._watcher, self._revocation_watcher, self._order_watcher)
            for watcher in watchers:
                stack.push_async_callback(watcher.close)
            stack.push_async_callback(self._discovery.close)
            # First: no call is held against less, and no probe says ready before.
            await asyncio.gather(*(watcher.start() for watcher in watchers), self._discovery.start())
            admin_port = await self._listen_for_operators(stack)
            self._authenticator.start()
            stack.push_async_callback(self._authenticator.close)
            self._admission.start()
            stack.push_async_callback(self._admission.close)
            stack.callback(self._upstream.close)
            for asking in (self._prober, self._load_poller):
                asking.start()
                stack.push_async_callback(asking.close)
            self._lag.start()
            stack.push_async_callback(self._lag.close)
            self._reload.start()
            stack.push_async_callback(self._reload.close)
            port = await self._listen_for_tenants(stack)
            self._running = stack.pop_all()
        return port, admin_port

    def reload(self) -> None:
        """Read the config again, soon, and go by it if it can hold; say in the log what came of it."""
        self._reload.ask()

    async def stop(self) -> None:
        """Send clients away for `server.drain_delay`, let calls end within `server.drain_timeout`, end every part."""
        await self._running.aclose()

    @property
    def stops_within_s(self) -> float:
        """How long `stop` lets clients and calls go on."""
        return self._settings.server.drain_delay + self._settings.server.drain_timeout

    def hurry(self) -> None:
        """Let `stop` wait for no call any more: those under way end now, visibly."""
        self._hurry.set()

    def figures(self) -> bytes:
        """Return what a scrape would show, for the supervisor."""
        return figures.written(figures.of(self._metrics.registry))

    async def _listen_for_operators(self, stack: AsyncExitStack) -> int:
        runner = web.AppRunner(
            operator.build(
                self._metrics,
                self._readiness,
                ledger=self._ledger,
                limits=self._limit_pages,
                revocations=self._revocation_pages,
                pools=self._pool_pages,
                reload=self._reload,
                clock=self._clock,
                behind_supervisor=self._given is not None,
            ),
            access_log=None,
            shutdown_timeout=_LEFTOVERS_S,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        if self._given is not None:
            assert runner.server is not None  # it has been set up
            private = await asyncio.get_running_loop().create_unix_server(runner.server, sock=self._given.operators)
            stack.callback(private.close)
            return 0
        address = self._settings.admin.listen
        site = web.TCPSite(runner, address.host, address.port, backlog=BACKLOG)
        with explained(address, key="admin.listen"):
            await site.start()
        return int(runner.addresses[0][1])

    async def _listen_for_tenants(self, stack: AsyncExitStack) -> int:
        server = self._settings.server
        stack.callback(self._clients.abort)
        sockets = self._given.tenants if self._given else bind(server.listen, shared=server.reuse_port)
        opened = Port(sockets, self._clients)
        stack.push_async_callback(self._drain, opened)
        with explained(server.listen, key=KEY):
            await opened.open()
        return opened.number

    async def _drain(self, opened: Port) -> None:
        """Let clients move, then refuse: first those who would connect, last those whose calls are under way."""
        server = self._settings.server
        self._leaving = True
        self._clients.leave()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(server.drain_delay):
                    await self._hurry.wait()
        finally:
            await opened.close()  # cancelled, too: uvloop never ends closing a loop with a server that is open
        self._clients.let_go()
        await self._clients.requests_in()
        await self._pipeline.drain(server.drain_timeout, self._hurry)
        await self._clients.gone()

    def _bytes_per_token(self) -> Iterable[tuple[str, float]]:
        return self._pipeline.serving.catalog.bytes_per_token()

    async def _take_on(self, settings: config.Config) -> bool:
        """Go by another config from now on; False where the process has begun to stop meanwhile.

        Whatever can fail or takes time comes first. What follows is one turn of the event loop: each call has either
        the config before or this one.

        Raises:
            BadConfig: it cannot hold. Nothing has changed.
        """
        Catalog(settings.models, Pools(settings.pools, self._chance, self._clock), self._chance)  # a trial
        try:
            trust = await self._authenticator.prepare(settings.auth)
        except KeySetUnusable as error:
            raise file.BadConfig("", [str(error)]) from error
        if self._leaving:
            await self._authenticator.abandon(trust)
            return False
        if settings.logging != self._settings.logging:
            logs.configure(settings.logging, self._writer, worker=None if self._given is None else self._given.worker)
        self._settings = settings
        self._metrics.configure(settings.models, settings.limits.tenants, max_tenants=settings.metrics.max_tenants)
        self._authenticator.adopt(trust)
        self._admission.configure(settings.limits)
        self._overrides.configure(settings.limits)
        self._limit_pages.configure(settings)
        self._clients.configure(
            head_timeout_s=settings.requests.head_timeout, write_timeout_s=settings.server.write_timeout
        )
        self._pools.configure(settings.pools)
        self._orders.judge_again()
        self._pipeline.serve_by(
            self._serving(settings, before=self._pipeline.serving.catalog),
            access_log=AccessLog(settings.logging, self._writer.write),
            body_budget=settings.server.body_budget,
        )
        return True

    def _serving(self, settings: config.Config, *, before: Catalog | None = None) -> Serving:
        catalog = Catalog(settings.models, self._pools, self._chance, before=before)
        return Serving(catalog, settings.requests, settings.server.max_body)

    def _readiness(self) -> Readiness:
        denies = self._settings.limits.denies_all
        return Readiness(
            draining=lambda: "this gateway is about to stop" if self._leaving else None,
            identity=lambda: None if self._authenticator.ready else "no key set of any issuer has been fetched yet",
            pools=lambda: self._pools.shut,
            store=(lambda: None if self._admission.ready else "the limit store does not answer") if denies else None,
        )

    def _settings_kept(self) -> list[SettingsState]:
        overrides, revoked, ordered = self._overrides, self._revocations, self._orders
        return [
            SettingsState(OVERRIDES, len(overrides.holding), overrides.left_out, self._watcher.age_s),
            SettingsState(REVOCATIONS, len(revoked.holding), revoked.left_out, self._revocation_watcher.age_s),
            SettingsState(ORDERS, len(ordered.holding), ordered.left_out, self._order_watcher.age_s),
        ]

    def _watch(self, kept: Settings, take: Callable[[Mapping[str, bytes]], None], what: str, clock: Clock) -> Watcher:
        return Watcher(kept, take, clock, what=what, failed=partial(self._metrics.settings_failed, what))

    def _note_failure(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell what happened outside of calls and was foreseen by nobody, as the event loop has it."""
        self._metrics.background_failed()
        _log.critical("%s", context["message"], exc_info=context.get("exception"))

    def _forget_later(self, _pool: Pool) -> None:
        """Forget what was counted of replicas that have left, once for all changes of this turn of the loop."""
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_soon(self._forget)

    def _forget(self) -> None:
        self._forgetting = None
        self._metrics.keep_attempts_of({(pool.name, replica.name) for pool, replica in self._pools.replicas})

    def _replicas(self) -> list[ReplicaState]:
        return [
            ReplicaState(
                pool.name,
                replica.name,
                replica.up,
                replica.in_flight,
                replica.breaker.open,
                replica.drained,
                *((load.running, load.waiting, load.cache_used) if (load := replica.load) else ()),
            )
            for pool, replica in self._pools.replicas
        ]


def _ids() -> Iterator[str]:
    """Yield 128 bits of the system's randomness as hex, for ever; one system call for many."""
    while True:
        block = os.urandom(16 * _IDS_AT_ONCE).hex()
        yield from (block[start : start + 32] for start in range(0, len(block), 32))
