"""A ledger in this process's memory: figures in, postings out. It is gone with the process."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, timedelta

from gateway.admission.ledger.account import Account, Counter
from gateway.admission.ledger.posting import Posting

_EPOCH = date(1970, 1, 1)
_DAY_US = 86_400 * 1_000_000

# Tenant, key, model and counter.
_Place = tuple[str, str, str, Counter]


class MemoryLedger:
    """Keeps each UTC day for `retention_s` after its end."""

    def __init__(self, *, retention_s: float) -> None:
        self._retention_us = round(retention_s * 1_000_000)
        self._days: dict[int, defaultdict[_Place, int]] = {}  # by the day's number since 1970

    def book(self, account: Account, figures: Iterable[tuple[Counter, int]], *, now_us: int) -> None:
        """Add `figures` to the line of `account`, today."""
        today = now_us // _DAY_US
        if today not in self._days:
            self._days = {day: kept for day, kept in self._days.items() if not self._over(day, now_us)}
            self._days[today] = defaultdict(int)
        for counter, figure in figures:
            self._days[today][account.tenant, account.key, account.model, counter] += figure

    def postings(self, tenant: str | None, since: date, until: date, *, now_us: int) -> Iterator[Posting]:
        """Yield what was booked from `since` to `until`, both included; of one tenant, or of all.

        More may be booked meanwhile; it may be missing.
        """
        for number, places in list(self._days.items()):
            day = _EPOCH + timedelta(days=number)
            if since <= day <= until and not self._over(number, now_us):
                for (whose, key, model, counter), figure in list(places.items()):
                    if tenant in (None, whose):
                        yield Posting(day, whose, key, model, counter, figure)

    def _over(self, day: int, now_us: int) -> bool:
        return (day + 1) * _DAY_US + self._retention_us <= now_us
