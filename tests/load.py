"""Calls through the admission stage, again and again, and what they used: for stores that fail meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.journal.journal import Journal
from gateway.admission.redis.store import RedisStore
from gateway.admission.redis.two_steps import InTwoSteps
from gateway.admission.store import Store
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.errors import LimitsUnavailable, TooMany
from gateway.identity.principal import Principal
from tests.deadlines import STORE_TIMEOUT_S
from tests.limiting import Remembering

CLOCK = SystemClock()
DEADLINE_S = 30.0
RULES = (
    config.Rule(name="requests", per=("key",), requests=10**9, window="1h"),
    config.Rule(name="tokens", per=("key",), tokens=10**9, window="month"),
    config.Rule(name="calls", per=("key",), requests=10**9, window="month"),
    config.Rule(name="at-once", per=("key",), concurrent=10**6),
)
CALL = Call(
    "chat", "m", b"", stream=False, include_usage=False, continuous_usage=False, input_tokens=10, output_tokens=20
)


class Gateway:
    """Admission before a store, and calls through it; `used` adds up what their engines generated."""

    def __init__(self, store: Store, admission: Admission, observer: Remembering) -> None:
        self.store = store
        self.admission = admission
        self.observer = observer
        self.used: Counter[str] = Counter()  # by tenant
        self.ended: Counter[str] = Counter()
        self._calls = 0

    async def call(self, tenant: str, *, lasts_s: float = 0.0) -> None:
        """Make one call."""
        self._calls += 1
        number = self._calls
        try:
            permit = await self.admission.admit(
                Principal(tenant, "key-1"), CALL, model="m", pool="p", default_output_tokens=1, call_id=f"call-{number}"
            )
        except LimitsUnavailable:
            self.ended["away"] += 1
            return
        except TooMany:
            self.ended["refused"] += 1
            return
        with permit:
            await asyncio.sleep(lasts_s)
            usage = Usage(10, number % 7)
            self.used[tenant] += usage.prompt + usage.completion
            self.ended["counted" if permit.fields else "uncounted"] += 1
            permit.settle(usage)

    @asynccontextmanager
    async def under_load(self, tenants: list[str]) -> AsyncIterator[None]:
        """Keep some calls going for each tenant: a few hundred a second in all."""
        stop = asyncio.Event()

        async def keep_calling(tenant: str) -> None:
            while not stop.is_set():
                await self.call(tenant, lasts_s=0.01)
                await asyncio.sleep(0.01)  # a refusal takes no time

        async with asyncio.TaskGroup() as calling:
            for tenant in tenants * (12 // len(tenants)):
                calling.create_task(keep_calling(tenant))
            yield
            stop.set()

    async def counted(self, more: int) -> None:
        """Wait until so many more calls were counted in the store."""
        enough = self.ended["counted"] + more
        await until(lambda: self.ended["counted"] >= enough)

    async def settled(self) -> None:
        """Wait until the store has everything."""
        await until(lambda: self.store.up and not self.store.pending)

    async def booked(self) -> tuple[Counter[str], Counter[str]]:
        """Return what the ledger holds of each tenant: tokens, and calls."""
        today = datetime.fromtimestamp(CLOCK.now(), UTC).date()
        tokens: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        async for one in self.store.ledger(None, today - timedelta(days=1), today + timedelta(days=1)):
            if one.counter in ("prompt_tokens", "completion_tokens"):
                tokens[one.tenant] += one.figure
            elif one.counter == "calls":
                calls[one.tenant] += one.figure
        return tokens, calls


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway_before(
    url: str,
    mode: Literal["local", "allow", "deny"],
    *,
    rules: tuple[config.Rule, ...] = RULES,
    journal: Path | None = None,
    timeout_s: float = STORE_TIMEOUT_S,
    events: config.Events | None = None,
) -> AsyncIterator[Gateway]:
    observer = Remembering()
    limits = config.Limits(
        store=url,
        on_store_failure=mode,
        plans={"standard": rules},
        journal=None if journal is None else str(journal),
    )
    steps = RedisStore(
        url,
        CLOCK,
        timeout_s=timeout_s,
        lease_s=30,
        retention_s=86_400,
        events=events,
        observer=observer,
        backlog=None if journal is None else Journal(journal, CLOCK, dropped=observer.settlement_dropped),
    )
    store = InTwoSteps(steps) if url.startswith("redis+cluster") else steps
    admission = Admission(limits, store, CLOCK, observer=observer)
    admission.start()
    try:
        yield Gateway(store, admission, observer)
    finally:
        await admission.close()
