"""A look at time limits every so often: one that comes late waits until what peers sent meanwhile has been read."""

import asyncio
from collections.abc import Callable

# A look that comes so much late says that this process stood still: it had no CPU time, or its machine had none.
STOOD_STILL_S = 0.2
# How long it is put off then: a turn of the loop, which reads.
READ_FIRST_S = 0.001


class Lookout:
    """Calls `look` with the time of the event loop, in seconds, so long after each `after`.

    What has come in time is not held to be late because it was not read in time: timers may run before the next read.
    A look is put off once: where every look is late, limits hold too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[float], None]) -> None:
        self.waiting = False
        self._loop = loop
        self._look = look
        self._due_at = 0.0
        self._put_off = False
        self._timer: asyncio.TimerHandle | None = None

    def after(self, in_s: float) -> None:
        """Look so many seconds from now, and not when it was to be looked before."""
        self.cancel()
        self.waiting = True
        self._due_at = self._loop.time() + in_s
        self._timer = self._loop.call_later(in_s, self._is_due)

    def cancel(self) -> None:
        """Look no more."""
        self.waiting = False
        if self._timer is not None:
            self._timer.cancel()

    def _is_due(self) -> None:
        now = self._loop.time()
        self._put_off = not self._put_off and now - self._due_at > STOOD_STILL_S
        if self._put_off:
            self.after(READ_FIRST_S)
        else:
            self.waiting = False
            self._look(now)
