"""The only place that reads the time. Everything else is given a `Clock`, so tests decide what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Return seconds since the Unix epoch (UTC)."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean anything."""


class SystemClock:
    """The machine's own clocks, called directly: a call of ours asks them a dozen times."""

    now = staticmethod(time.time)  # noqa: TID251 this is the clock
    monotonic = staticmethod(time.monotonic)  # noqa: TID251 this is the clock
