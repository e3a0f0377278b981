"""Several are asked the same at once: the answers of those that are there, without waiting long for the others."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from gateway import background
from gateway.admission.redis.patience import TURNS

# How long they may take, and how long the others may once one has answered. A busy machine has taken half a second.
ANSWER_WITHIN_S = 1.0
_OTHERS_WITHIN_S = 0.1

Answer = TypeVar("Answer")


async def answers(asked: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Return the answers that come in time, one at least.

    Raises:
        Exception: what the first that failed raised, where all failed.
        TimeoutError: nobody answers.
    """
    asking = {asyncio.ensure_future(one) for one in asked}
    waiting, found, failures = asking, list[Answer](), list[BaseException]()
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting,
                timeout=_OTHERS_WITHIN_S if found else ANSWER_WITHIN_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for _ in range(0 if done else TURNS):
                await asyncio.sleep(0)  # after a stall of our own loop what has come is yet to be looked at
                done |= {one for one in waiting if one.done()}
            waiting -= done
            if not done:
                break
            failures += [error for one in done if (error := one.exception()) is not None]
            found += [one.result() for one in done if one.exception() is None]
    finally:
        await background.end(*asking)
    if found:
        return found
    raise next(iter(failures), TimeoutError("nobody answers"))
