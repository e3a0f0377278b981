"""Reads the ledger that the scripts write, on a connection of its own: no call waits behind it.

Each read connects, pages through one hash a tenant and day, and disconnects.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import date, timedelta

from gateway.admission.digest import digest
from gateway.admission.ledger.account import COUNTERS, Counter, decoded
from gateway.admission.ledger.posting import PAUSE_AFTER, Posting
from gateway.admission.redis.client import FAILURES, Client, client, overwritten
from gateway.admission.store import StoreUnavailable
from gateway.config import store_url

# How long the server may take for each page, and to be connected to.
_WITHIN_S = 5.0

# Hashes in one pipeline, and about how many fields of each: some milliseconds of this process.
_HASHES, _FIELDS = 8, 500

# Keys looked at in one step where all tenants are asked for.
_KEYS = 1000

_COUNTERS: dict[str, Counter] = {counter: counter for counter in COUNTERS}


class RedisLedger:
    """The ledger in the store at `url`."""

    def __init__(self, url: str) -> None:
        self._url = store_url.parse(url)

    async def postings(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        """Yield what was booked from `since` to `until`, both included; of one tenant, or of all.

        Raises:
            StoreUnavailable: it cannot be read. Its cause says why.
        """
        days = {f"{day:%Y%m%d}": day for day in _days(since, until)}
        try:
            async with await client(self._url, within_s=_WITHIN_S) as server:
                keys = [f"gw:{{{digest(tenant)}}}:ledger:{day}" for day in days] if tenant is not None else None
                async for key, fields in _hashes(server, await _keys(server, days) if keys is None else keys):
                    for number, posting in enumerate(_posted(days[key[-8:]], fields, tenant)):
                        yield posting
                        if number % PAUSE_AFTER == 0:
                            await asyncio.sleep(0)
        except FAILURES as error:
            raise StoreUnavailable(sent=True) from error


def _days(since: date, until: date) -> Iterator[date]:
    return (since + timedelta(days=number) for number in range((until - since).days + 1))


async def _keys(server: Client, days: Iterable[str]) -> list[str]:
    """Return the keys of all tenants' `days`, each once: the server may tell one twice."""
    keys = {key.decode() async for key in server.scan_iter(match="gw:{*}:ledger:*", count=_KEYS)}
    wanted = set(days)
    return [key for key in keys if key.rpartition(":")[2] in wanted]


async def _hashes(server: Client, keys: Iterable[str]) -> AsyncIterator[tuple[str, Mapping[bytes, bytes]]]:
    """Yield each key's whole hash; nothing where there is none."""
    waiting = [(key, 0) for key in keys]
    read: dict[str, dict[bytes, bytes]] = {}
    while waiting:
        batch, waiting = waiting[:_HASHES], waiting[_HASHES:]
        pipeline = server.pipeline(transaction=False)
        for key, cursor in batch:
            pipeline.hscan(key, cursor, count=_FIELDS)
        pages = await pipeline.execute(raise_on_error=False)
        unfinished = []
        for (key, _), page in zip(batch, pages, strict=True):
            if isinstance(page, Exception) and not overwritten(page):
                raise page
            cursor, fields = (0, {}) if isinstance(page, Exception) else page
            read.setdefault(key, {}).update(fields)  # a field that is told twice counts once
            if cursor:
                unfinished.append((key, cursor))
            else:
                yield key, read.pop(key)
        waiting[:0] = unfinished


def _posted(day: date, fields: Mapping[bytes, bytes], tenant: str | None) -> Iterator[Posting]:
    if not fields:
        return
    whose = decoded(fields[b"tenant"].decode()) if tenant is None else tenant
    for field, figure in fields.items():
        word, _, line = field.decode().partition(" ")
        counter = _COUNTERS.get(word)
        if counter is not None:
            key, _, model = line.partition(" ")
            yield Posting(day, whose, decoded(key), decoded(model), counter, int(figure))
