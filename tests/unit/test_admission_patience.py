"""How long patience lasts: counted anew with each beginning, whatever timer was set for an earlier one."""

import asyncio

import pytest

from gateway.admission.redis.patience import Patience
from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S

CLOCK = SystemClock()
LATE_S = 0.5  # what a busy machine may add


async def over_after(patience: Patience, over: asyncio.Event, started: float) -> float:
    async with asyncio.timeout(DEADLINE_S):
        await over.wait()
    over.clear()
    return CLOCK.monotonic() - started


@pytest.mark.parametrize("before_s", [None, 60, 0.05, 0.02])
async def test_time_is_counted_from_the_last_beginning(before_s: float | None) -> None:
    over = asyncio.Event()
    patience = Patience(CLOCK, over.set)
    if before_s is not None:
        patience.begin(before_s)
        await asyncio.sleep(0.01)
        patience.end()
    started = CLOCK.monotonic()
    patience.begin(0.05)
    assert 0.05 <= await over_after(patience, over, started) < 0.05 + LATE_S
    started = CLOCK.monotonic()
    patience.begin(0.03)
    assert 0.03 <= await over_after(patience, over, started) < 0.03 + LATE_S


async def test_what_has_ended_is_never_over() -> None:
    over = asyncio.Event()
    patience = Patience(CLOCK, over.set)
    for _ in range(20):
        patience.begin(0.02)
        await asyncio.sleep(0.002)
    patience.end()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(over.wait(), 0.05)
