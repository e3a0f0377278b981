"""Questions to the ledger wait for those of their own tenant, and what is wrong with one is said as it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import date

import pytest

from gateway.admission.ledger.posting import Posting
from gateway.admission.ledger.query import Query, of_tenant
from gateway.admission.ledger.reader import LedgerReader
from gateway.errors import InvalidValue
from tests.deadlines import DEADLINE_S
from tests.limiting import SetClock

TODAY = date(2026, 12, 1)


def of(tenant: str | None) -> Query:
    return Query(tenant, TODAY, TODAY, ("key",))


async def test_a_tenant_that_asks_a_lot_holds_up_itself_alone() -> None:
    go, reading = asyncio.Event(), 0

    async def read(tenant: str | None, since: date, _: date) -> AsyncIterator[Posting]:
        nonlocal reading
        if tenant == "noisy":
            reading += 1
            await go.wait()
            reading -= 1
        yield Posting(since, tenant or "all", "key-1", "m", "calls", 1)

    reader = LedgerReader(read, SetClock())
    storm = [asyncio.create_task(reader.page(of("noisy"))) for _ in range(20)]
    async with asyncio.timeout(DEADLINE_S):
        for tenant in ("quiet", "other", None, "quiet"):
            assert json.loads(await reader.page(of(tenant)))["data"][0]["calls"] == 1
        assert reading == 1
        go.set()
        assert len(await asyncio.gather(*storm)) == 20
    storm.clear()
    assert len(reader._own) == 0


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ([("since", "2027-01-01")], "send until too"),
        ([("since", "2026-11-02"), ("until", "2026-11-01")], "swap them"),
    ],
)
def test_days_in_the_wrong_order_are_told_with_what_to_do(given: list[tuple[str, str]], advice: str) -> None:
    with pytest.raises(InvalidValue, match=advice) as refused:
        of_tenant("acme", given, today=TODAY)
    assert refused.value.param == "since"
