"""Questions to the ledger in, pages of JSON out: for whoever asks over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime
from weakref import WeakValueDictionary

from gateway.admission.ledger.posting import Posting
from gateway.admission.ledger.query import Query
from gateway.admission.ledger.rows import add_up, as_page, rows
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock
from gateway.errors import LimitsUnavailable

# A store's `ledger`.
ReadLedger = Callable[[str | None, date, date], AsyncIterator[Posting]]

# Reads at once: each has a connection to the store, and they share one process with all streams.
_AT_ONCE = 4
_WITHIN_S = 30.0


class LedgerReader:
    """Reads a ledger, a few questions at once, of each tenant one, and one of all tenants; further ones wait."""

    def __init__(self, read: ReadLedger, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._own = WeakValueDictionary[str | None, asyncio.Lock]()  # of a tenant, while one of its questions is here

    def today(self) -> date:
        """Return the UTC day."""
        return datetime.fromtimestamp(self._clock.now(), UTC).date()

    async def page(self, query: Query) -> bytes:
        """Return the rows that answer `query`, as JSON.

        Raises:
            LimitsUnavailable: the store cannot be read, or takes too long.
        """
        own = self._own.setdefault(query.tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(_WITHIN_S), own, self._turns:
                groups = await add_up(self._read(query.tenant, query.since, query.until), query.group_by)
        except (StoreUnavailable, TimeoutError) as failure:
            raise LimitsUnavailable("Usage cannot be read at the moment. Try again shortly.") from failure
        return await asyncio.to_thread(lambda: as_page(rows(groups, query.group_by)))
