import asyncio

from gateway.telemetry.lag import EVERY_S, LoopLag
from tests.deadlines import DEADLINE_S


class Clock:
    def __init__(self, sleeps: list[float]) -> None:
        self._sleeps = sleeps
        self._now = 100.0
        self.exhausted = asyncio.Event()

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        assert seconds == EVERY_S
        if not self._sleeps:
            self.exhausted.set()
            await asyncio.get_running_loop().create_future()
        self._now += self._sleeps.pop(0)


async def test_lag_is_how_much_later_the_timer_fired_and_never_negative() -> None:
    clock = Clock([EVERY_S + 0.25, EVERY_S, EVERY_S - 0.001])
    seen: list[float] = []
    lag = LoopLag(seen.append, clock, sleep=clock.sleep)
    lag.start()
    await asyncio.wait_for(clock.exhausted.wait(), DEADLINE_S)
    await lag.close()
    assert seen == [0.25, 0.0, 0.0]


async def test_closing_ends_the_task() -> None:
    clock = Clock([])
    lag = LoopLag(lambda _seconds: None, clock, sleep=clock.sleep)
    before = asyncio.all_tasks()
    lag.start()
    await asyncio.wait_for(clock.exhausted.wait(), DEADLINE_S)
    assert len(asyncio.all_tasks() - before) == 1
    await lag.close()
    assert asyncio.all_tasks() == before


async def test_closing_what_never_started_is_nothing() -> None:
    clock = Clock([])
    await LoopLag(lambda _seconds: None, clock, sleep=clock.sleep).close()
