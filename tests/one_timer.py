"""An event loop with one timer, which fires when a test has it fire."""

from collections.abc import Callable


class OneTimer:
    """The loop, and the handle of its timer. `due_at` is when that is to fire, None where there is none."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due_at: float | None = None
        self._then: Callable[[], object]

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, then: Callable[[], object]) -> "OneTimer":
        assert self.due_at is None, "there are two timers"
        self.due_at, self._then = self.now + delay, then
        return self

    def cancel(self) -> None:
        self.due_at = None

    def fire(self, *, late_s: float = 0.0) -> None:
        assert self.due_at is not None, "there is no timer"
        self.now, self.due_at = self.due_at + late_s, None
        self._then()
