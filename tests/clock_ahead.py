"""`gateway` in a process whose clock is 20 s ahead: `python -m tests.clock_ahead serve …`."""

from gateway.cli import main
from gateway.clock import SystemClock

AHEAD_S = 20
true_time = SystemClock.now


def ahead() -> float:
    return true_time() + AHEAD_S


if __name__ == "__main__":
    SystemClock.now = staticmethod(ahead)
    main()
