"""An event loop whose time a test can move on: hours pass in a moment, and every timer fires at its own time."""

import asyncio

from gateway.clock import SystemClock

# How often the time limits of answers are looked at.
_STEP_S = 0.1
# A byte on a loopback socket needs a turn of the loop to be seen, and whoever waits for it some more to act on it.
_TURNS = 4


class LeapingLoop(asyncio.SelectorEventLoop):
    """asyncio's loop. `ahead_s` is how far its time and that of its clock are ahead of the machine's."""

    ahead_s = 0.0

    def time(self) -> float:
        """Return the machine's time and what was leapt over."""
        return super().time() + self.ahead_s

    async def leap(self, seconds: float) -> None:
        """Let so much time pass."""
        for _ in range(round(seconds / _STEP_S)):
            self.ahead_s += _STEP_S
            for _ in range(_TURNS):
                await asyncio.sleep(0)


class LeapingClock:
    """The clock of whoever runs on such a loop."""

    def __init__(self, loop: LeapingLoop) -> None:
        self._loop = loop
        self._machine = SystemClock()

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return self._machine.now() + self._loop.ahead_s

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._machine.monotonic() + self._loop.ahead_s


def leaping() -> tuple[LeapingLoop, LeapingClock]:
    """Return the loop of a test that is marked with `loops("leaping")`, and a clock that leaps with it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    return loop, LeapingClock(loop)
