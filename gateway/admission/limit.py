"""One rule as it applies to one principal and one model, and the arithmetic of its window.

Pure: integers in, integers out, time in microseconds since the epoch. `redis/windows.lua` holds the same arithmetic for
the shared store, and tests hold the two against each other step by step.

Kinds of window:
    bucket      a duration: `limit` units of capacity, refilled evenly, in whole units only
    day, month  a UTC calendar period: nothing comes back before its end
    lease       calls at once: a slot is held until given back, or until its lease runs out
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal

from gateway.admission.price import Price

Measure = Literal["requests", "tokens", "concurrency"]
Kind = Literal["bucket", "day", "month", "lease"]
Tokens = Literal["total", "input", "output"]
Unit = Literal["requests", "concurrency"] | Tokens | Price

# All but prices, in the order in which a call's figures are listed.
UNITS: tuple[Unit, ...] = ("requests", "concurrency", "total", "input", "output")

# What is used, and a time that the kind gives its meaning: for a bucket since when it has been refilling, for a
# calendar period until when it lasts, for leases nothing. Both of the moment before the call is charged.
Level = tuple[int, int]

# The largest count: the shared store's Lua has only doubles, and 2^53 + 1 would pass for 2^53.
MAX_COUNT = 2**53 - 1

_DAY_US = 86_400 * 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """How much, of what, in which window, and under which key of the store that is counted.

    `window_us` is the length of a bucket's window, 0 for other kinds. `count` says which tokens are meant, `price` what
    each counts, where that is not 1.
    Compared by identity: what is worked out of limits once is found again by the tuple of them.
    """

    rule: str
    measure: Measure
    kind: Kind
    limit: int
    window_us: int
    key: str
    shadow: bool = False
    count: Tokens = "total"
    price: Price | None = None

    def share(self, processes: int) -> "Limit":
        """Return what one of `processes` may admit on its own: an equal part, at least 1 of a limit that is not 0."""
        return replace(self, limit=max(self.limit // processes, min(self.limit, 1)))

    def refuses(self, used: int, cost: int) -> bool:
        """Whether `cost` more does not fit. A limit of 0 fits nothing, not even a call that costs 0."""
        return used + cost > self.limit or self.limit == 0

    @property
    def unit(self) -> Unit:
        """What this counts: calls, calls at once, or those of a call's tokens that `count` says, perhaps at a price."""
        return self.price or self.count if self.measure == "tokens" else self.measure

    def reset_after_us(self, used: int, clock_us: int) -> int:
        """Return how long until nothing is used any more, if no more calls come."""
        if self.kind == "bucket":
            return -(-used * self.window_us // self.limit) - clock_us if used and self.limit else 0
        return clock_us if used else 0

    def retry_after_us(self, used: int, clock_us: int, cost: int) -> int:
        """Return how long until `cost` fits, if no more calls come. For leases: unknown, 0."""
        if self.kind == "bucket":
            return max(_time_of(used + cost - self.limit, self) - clock_us, 0)
        return clock_us


def refill(used: int, at_us: int, now_us: int, limit: int, window_us: int) -> tuple[int, int]:
    """Return a bucket's state at `now_us`: what is used, and since when it has been refilling.

    Whole units only, and the time that they took is rounded up, so a bucket never refills faster than its rule says.
    A clock that went back (a failover to another store) refills nothing until time passes again.
    """
    at_us = min(at_us, now_us)
    units = (now_us - at_us) * limit // window_us
    if units >= used:
        return 0, now_us
    return used - units, at_us - (-units * window_us // limit)


def period(kind: Kind, now_us: int) -> tuple[int, int]:
    """Return the number of the UTC day or month at `now_us`, as `windows.lua` numbers them, and when it ends."""
    day = now_us // _DAY_US
    return (day, (day + 1) * _DAY_US) if kind == "day" else _month(day)


def same_period(kind: Kind, one_us: int, other_us: int) -> bool:
    """Whether two times are of one UTC day or month. Most are of one day."""
    days = one_us // _DAY_US, other_us // _DAY_US
    return days[0] == days[1] or (kind == "month" and _month(days[0]) == _month(days[1]))


@lru_cache(maxsize=8)  # calls are of today: 0.1 us instead of 2.5
def _month(day: int) -> tuple[int, int]:
    today = _EPOCH + timedelta(days=day)
    number = today.year * 12 + today.month
    end = datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return number, (end - _EPOCH).days * _DAY_US


def _time_of(units: int, limit: Limit) -> int:
    """Return how long a bucket takes to refill by `units`."""
    return -(-units * limit.window_us // limit.limit) if limit.limit else 0
