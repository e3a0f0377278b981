"""Tasks that begin anew where they fail: ever more seldom, until they have run for long."""

import asyncio
from contextlib import suppress
from itertools import pairwise
from threading import Event

import pytest

from gateway import background
from tests.leaping import leaping

pytestmark = pytest.mark.loops("leaping")


async def test_what_fails_again_and_again_is_told_and_begun_anew_ever_more_seldom() -> None:
    loop, _ = leaping()
    told, begun = list[str](), list[float]()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    start = loop.time()

    async def work() -> None:
        begun.append(loop.time() - start)
        if len(begun) == 10:  # it runs well for a while
            await asyncio.sleep(2 * background.LONGEST_PAUSE_S)
        raise ZeroDivisionError

    task = background.begin(work, name="trial")
    await loop.leap(600)
    growing = [1, 2, 4, 8, 16, 32, 60, 60]
    apart = [after - before for before, after in pairwise(begun)]
    assert apart == pytest.approx([0.5, *growing, 120.5, *growing, 60], abs=0.3)
    assert len(told) == len(begun)
    assert told[0] == "a background task failed, and begins anew in 0.5 s: trial"
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_what_is_done_is_done_and_what_is_cancelled_ends() -> None:
    async def nothing() -> None:
        pass

    async def waits() -> None:
        await asyncio.Event().wait()

    await background.begin(nothing, name="nothing")
    task = background.begin(waits, name="waits")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_to_end_what_does_not_hear_of_it_it_is_told_again() -> None:
    heard = list[str]()

    async def deaf(name: str, *, fails: bool = False) -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            heard.append(name)
        if fails:
            raise ZeroDivisionError

    async def done() -> None:
        pass

    tasks = [asyncio.create_task(one) for one in (deaf("returns"), deaf("fails", fails=True), done())]
    await asyncio.sleep(0)
    await background.end(None, *tasks)
    assert sorted(heard) == 3 * ["fails"] + 3 * ["returns"]
    assert all(one.done() for one in tasks)


async def test_what_is_done_apart_returns_or_raises_and_holds_up_nobody_who_is_cancelled() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    go, done = Event(), Event()

    def hangs() -> None:
        go.wait(5)
        done.set()

    assert await background.apart(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await background.apart(fails)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await background.apart(hangs)
    go.set()
    assert done.wait(5)
