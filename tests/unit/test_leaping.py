"""The loop that leaps: what a test says that passes is what passes, however busy the machine is."""

import asyncio

import pytest

from tests.leaping import leaping

pytestmark = pytest.mark.loops("leaping")


async def test_a_leap_is_as_long_as_it_says_whatever_it_takes_of_the_machines_time() -> None:
    loop, clock = leaping()

    async def compute() -> None:
        while True:
            sum(range(20_000))  # in each turn: some tenths of a millisecond, of two and a half thousand turns
            await asyncio.sleep(0)

    computing = asyncio.create_task(compute())
    began, at = loop.time(), clock.now()
    await loop.leap(60)
    assert loop.time() - began == pytest.approx(60, abs=0.05)
    assert clock.now() - at == pytest.approx(60, abs=0.05)
    computing.cancel()


async def test_timers_fire_at_their_time_amid_a_leap() -> None:
    loop, _ = leaping()
    fired, began = list[float](), loop.time()
    for after_s in (1.0, 2.5, 9.9, 10.2):
        loop.call_later(after_s, lambda: fired.append(loop.time() - began))
    await loop.leap(10)
    assert fired == pytest.approx([1.0, 2.5, 9.9], abs=0.15)
