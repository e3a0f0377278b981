"""A look at time limits comes when it is due; one that is late waits until the loop has read, and no longer."""

import asyncio
from typing import cast

import pytest

from gateway.lookout import READ_FIRST_S, STOOD_STILL_S, Lookout
from tests.one_timer import OneTimer

LATE_S = 2 * STOOD_STILL_S


def lookout() -> tuple[Lookout, OneTimer, list[float]]:
    """Return one whose looks are written down."""
    loop, looks = OneTimer(), list[float]()
    return Lookout(cast(asyncio.AbstractEventLoop, loop), looks.append), loop, looks


def test_a_look_comes_when_it_is_due_and_once() -> None:
    out, loop, looks = lookout()
    assert not out.waiting
    out.after(5)
    assert (out.waiting, loop.due_at) == (True, 1005)
    loop.fire(late_s=STOOD_STILL_S / 2)
    assert looks == [1005 + STOOD_STILL_S / 2]
    assert (out.waiting, loop.due_at) == (False, None)


def test_a_late_look_waits_until_the_loop_has_read() -> None:
    out, loop, looks = lookout()
    for number in range(1, 4):
        out.after(5)
        loop.fire(late_s=LATE_S)
        assert (out.waiting, loop.due_at, len(looks)) == (True, loop.now + READ_FIRST_S, number - 1)
        loop.fire()
        assert (out.waiting, looks[-1], len(looks)) == (False, loop.now, number)


def test_where_every_look_is_late_each_second_one_is_taken() -> None:
    out, loop, looks = lookout()
    out.after(5)
    for number in range(1, 4):
        loop.fire(late_s=LATE_S)
        assert len(looks) == number - 1
        loop.fire(late_s=LATE_S)
        assert len(looks) == number
        out.after(5)


def test_the_last_word_on_when_to_look_holds() -> None:
    out, loop, looks = lookout()
    out.after(5)
    out.after(1)
    assert loop.due_at == 1001
    out.cancel()
    assert not out.waiting
    with pytest.raises(AssertionError, match="no timer"):
        loop.fire()
    assert not looks
