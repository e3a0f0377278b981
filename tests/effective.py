"""How soon what an operator changed holds in every gateway: waited for, and held to what is promised."""

from collections.abc import Awaitable, Callable

from gateway.clock import SystemClock
from tests.processes import until

# What an operator is promised.
EFFECTIVE_WITHIN_S = 2.0
# What a machine that stands still for a moment takes besides.
_STANDSTILL_S = 2.0
_CLOCK = SystemClock()


class Effects:
    """Of one test's changes one may be late, for the machine may have stood still. What breaks the promise is again."""

    def __init__(self) -> None:
        self._late: list[float] = []

    async def until(self, condition: Callable[[], Awaitable[bool]], *, more_s: float = 0.0) -> None:
        """Wait until `condition` holds: as soon as is promised, or `more_s` later."""
        began, promised_s = _CLOCK.monotonic(), EFFECTIVE_WITHIN_S + more_s
        await until(condition, promised_s + _STANDSTILL_S)
        took_s = _CLOCK.monotonic() - began
        if took_s > promised_s:
            self._late.append(took_s)
        assert len(self._late) <= 1, self._late
