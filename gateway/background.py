"""What goes on beside calls: tasks that live as long as who begins them, and work that a disk may hold up.

Where such a task fails, which nothing is made for, it is told and begins anew: what it looks after (probes, leases,
settings, key sets) would otherwise stay as it was until a restart.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")

# A second failure may be as quick as the first; what fails for long should not fill the log.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
# Until a task that was told to end, and has not, is told again.
_AGAIN_S = 0.1


def begin(work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
    """Do `work` until it is done or cancelled. Its failures go to the loop's exception handler."""
    return asyncio.get_running_loop().create_task(_on_and_on(work, name), name=name)


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel `tasks`, and return when all have ended; how does not matter.

    They are told again until they have: `asyncio.wait_for`, with which redis-py and dnspython wait, loses what comes in
    the very moment it is done, before Python 3.12 (python/cpython#86296).
    """
    ending = {task for task in tasks if task is not None}
    while ending:
        for task in ending:
            task.cancel()
        ended, ending = await asyncio.wait(ending, timeout=_AGAIN_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # else the loop says that nobody asked


async def apart(work: Callable[[], _Result], *, name: str = "apart") -> _Result:
    """Return what `work` returns, from a thread of its own that is called `name`. Who is cancelled leaves it to itself.

    asyncio's own threads are few, so that what hangs in them takes them from others; and the process's end waits for
    each: a file on a disk that hangs would let no gateway end.

    Raises:
        OSError: the system has no thread to spare now.
    """
    future: Future[_Result] = Future()
    try:
        Thread(target=_fill, args=(future, work), name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return await asyncio.wrap_future(future)


def _fill(future: "Future[_Result]", work: Callable[[], _Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 whoever waits is to have it
        future.set_exception(error)


async def _on_and_on(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            return await work()
        except Exception as failure:  # noqa: BLE001 whatever it was, this task must go on
            if loop.time() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            message = f"a background task failed, and begins anew in {pause_s:g} s: {name}"
            loop.call_exception_handler({"message": message, "exception": failure})
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
