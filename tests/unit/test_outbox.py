"""Whoever wrote in a turn of the loop flushes at its end, whatever others do."""

import asyncio
from typing import Any

from gateway.outbox import Outbox


class Pen:
    """Counts its flushes; `broken`: fails in them."""

    def __init__(self, *, broken: bool = False) -> None:
        self.flushes = 0
        self._broken = broken

    def flush(self) -> None:
        self.flushes += 1
        if self._broken:
            raise RuntimeError("canary")


async def test_all_who_wrote_flush_behind_what_is_ready() -> None:
    loop = asyncio.get_running_loop()
    outbox, one, other = Outbox(loop), Pen(), Pen()
    loop.call_soon(outbox.add, other)  # ready now, so within this turn
    outbox.add(one)
    outbox.add(one)
    assert one.flushes == 0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (one.flushes, other.flushes) == (2, 1)  # as often as they said


async def test_one_that_fails_holds_up_nobody() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    outbox, pens = Outbox(loop), [Pen(), Pen(broken=True), Pen(), Pen(broken=True), Pen()]
    for pen in pens:
        outbox.add(pen)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [pen.flushes for pen in pens] == [1, 1, 1, 1, 1]
    assert [str(context["exception"]) for context in told] == ["canary", "canary"]
    outbox.add(pens[0])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pens[0].flushes == 2
