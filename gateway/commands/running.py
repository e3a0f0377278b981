"""How a command runs that goes on until SIGTERM or SIGINT: its event loop, and what ends it."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gateway.commands.command import FAILED, fail

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result], *, on_asyncio: bool = False) -> _Result:
    """Return what `work` comes to, or end the process where the system refuses what it needs."""
    try:
        with asyncio.Runner(loop_factory=None if on_asyncio else _loop_factory()) as runner:
            return runner.run(work)
    except OSError as error:
        fail(f"cannot start: {error}", FAILED)


async def until_told_to_stop() -> None:
    """Wait for SIGTERM or SIGINT."""
    told = asyncio.Event()
    when_told_to_stop(told.set)
    await told.wait()


def when_told_to_stop(act: Callable[[], object]) -> None:
    """Have SIGTERM and SIGINT do this from now on, and nothing else."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, act)


def _loop_factory() -> Any:
    """Return uvloop's factory where it is installed; asyncio's own loop does the same, for about twice the CPU."""
    try:
        import uvloop  # noqa: PLC0415 optional
    except ImportError:
        return None
    return uvloop.new_event_loop
