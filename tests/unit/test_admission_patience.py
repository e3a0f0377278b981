"""How long patience lasts: counted anew with each beginning, whatever timer was set for an earlier one."""

import asyncio

import pytest

from gateway.admission.redis.patience import Patience
from tests.leaping import leaping

pytestmark = pytest.mark.loops("leaping")

STEP_S = 0.1
LATE_S = 0.5  # what the loop may add
FOR_EVER_S = 100


async def over_after(over: asyncio.Event) -> float:
    loop, _ = leaping()
    began = loop.time()
    while not over.is_set():
        assert loop.time() < began + FOR_EVER_S
        await loop.leap(STEP_S)
    over.clear()
    return loop.time() - began


@pytest.mark.parametrize("before_s", [None, 60, 5, 2])
async def test_time_is_counted_from_the_last_beginning(before_s: float | None) -> None:
    loop, clock = leaping()
    over = asyncio.Event()
    patience = Patience(clock, over.set)
    if before_s is not None:
        patience.begin(before_s)
        await loop.leap(1)
        patience.end()
    for seconds in (5, 3):
        patience.begin(seconds)
        assert seconds <= await over_after(over) < seconds + LATE_S


async def test_what_has_ended_is_never_over() -> None:
    loop, clock = leaping()
    over = asyncio.Event()
    patience = Patience(clock, over.set)
    for _ in range(20):
        patience.begin(2)
        await loop.leap(0.2)
    patience.end()
    await loop.leap(5)
    assert not over.is_set()
