"""An event loop whose time a test can move on: hours pass in a moment, and every timer fires at its own time.

A process that stands still, because its machine has no time for it, does not age by it: a turn of the loop takes some
hundredths of a second at most, however long it took. So what may take a tenth of a second has it.
"""

import asyncio
import selectors

from gateway.clock import Clock, SystemClock

# How often the time limits of answers are looked at.
_STEP_S = 0.1
# A byte on a loopback socket needs a turn of the loop to be seen, and whoever waits for it some more to act on it.
_TURNS = 4
# What a turn counts for at most, and what it waits for at most: less, so that all of that counts.
_TURN_S, _WAIT_S = 0.02, 0.01


class LeapingLoop(asyncio.SelectorEventLoop):
    """asyncio's loop. `ahead_s` is how far its time and that of its clock are ahead of the machine's."""

    ahead_s = 0.0
    _turn_s = _TURN_S

    def __init__(self) -> None:
        self._looked_at = super().time()
        super().__init__(_ShortWaits())

    def time(self) -> float:
        """Return the machine's time, without what it stood still for, and with what was leapt over."""
        now = super().time()
        self.ahead_s -= max(0.0, now - self._looked_at - self._turn_s)
        self._looked_at = now
        return now + self.ahead_s

    async def leap(self, seconds: float) -> None:
        """Let so much time pass, and none besides: what a leap takes of the machine's time is more on a busy one."""
        self.time()
        self._turn_s = 0.0
        try:
            for _ in range(round(seconds / _STEP_S)):
                self.ahead_s += _STEP_S
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            self.time()
        finally:
            self._turn_s = _TURN_S


class _ShortWaits(selectors.DefaultSelector):
    """Looks at the time often."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(_WAIT_S if timeout is None else min(timeout, _WAIT_S))


class LeapingClock:
    """The clock of whoever runs on such a loop."""

    def __init__(self, loop: LeapingLoop) -> None:
        self._loop = loop
        self._machine = SystemClock()

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        self._loop.time()
        return self._machine.now() + self._loop.ahead_s

    def monotonic(self) -> float:
        """Return seconds that never go back: the loop's."""
        return self._loop.time()


def clock_of(loop: asyncio.AbstractEventLoop) -> Clock:
    """Return the clock that goes with a loop."""
    return LeapingClock(loop) if isinstance(loop, LeapingLoop) else SystemClock()


def leaping() -> tuple[LeapingLoop, LeapingClock]:
    """Return the loop of a test that is marked with `loops("leaping")`, and a clock that leaps with it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    return loop, LeapingClock(loop)
