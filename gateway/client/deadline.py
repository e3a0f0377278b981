"""The deadline that a client sets itself: a field of its request's head in, a moment or a refusal out.

    x-request-timeout-ms: 30000

It can only shorten what the configuration allows, as it ends a call that would go on and never prolongs one.
"""

import asyncio
import re
from types import TracebackType

from gateway.client.request import Request
from gateway.clock import Clock
from gateway.errors import DeadlinePassed, InvalidValue

NAME = "x-request-timeout-ms"
TOO_LATE = f"The time that {NAME} allows was over before an answer began; allow more, or ask for less."
_FIELD = NAME.encode()
# Three thousand years are enough; int() of any length would cost us what a stranger likes.
_MILLISECONDS = re.compile(rb"0*[1-9][0-9]{0,13}")


class Deadline:
    """A moment, in the clock's monotonic seconds. A block `with` it ends by then, whatever it waits for.

    Raises DeadlinePassed from the block, which it cancels. A client that leaves meanwhile has left: that cancels, too.
    """

    __slots__ = ("_cancelled_before", "_clock", "_task", "_timer", "at", "passed")

    def __init__(self, at: float, clock: Clock) -> None:
        self.at = at
        self.passed = False
        self._clock = clock

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelled_before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self.at - self._clock.monotonic(), self._pass)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.passed and self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise DeadlinePassed(TOO_LATE) from error

    def _pass(self) -> None:
        self.passed = True
        self._task.cancel()


def deadline_of(request: Request, *, began_at: float, clock: Clock) -> Deadline | None:
    """Return the deadline of a call whose head arrived at `began_at`, in the clock's monotonic seconds, if it has one.

    Raises:
        InvalidValue: the field is there and is not one positive integer.
    """
    value = request.fields.get(_FIELD)
    if value is None:
        return None
    if not _MILLISECONDS.fullmatch(value):
        raise InvalidValue(f"{NAME}: expected a positive integer of milliseconds, such as 30000.", param=NAME)
    return Deadline(began_at + int(value) / 1000, clock)
