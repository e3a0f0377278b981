"""Who follows settings is told of each change once, keeps the last known while the store is away, and gives it back."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

import pytest

from gateway.admission.redis import settings
from gateway.admission.settings import watcher
from gateway.admission.settings.memory import MemorySettings
from gateway.admission.settings.settings import Change, Kept
from gateway.admission.settings.watcher import Watcher
from gateway.admission.store import StoreUnavailable
from tests.deadlines import DEADLINE_S
from tests.limiting import SECOND, SetClock
from tests.processes import until


class Shelf(MemorySettings):
    """Settings that can be away, or lose all, and that note what they are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.asked: list[str] = []

    async def version(self) -> bytes:
        self.asked.append("version")
        if self.away:
            raise StoreUnavailable(sent=True) from OSError("away")
        return await super().version()

    async def read(self) -> Kept:
        self.asked.append("read")
        return await super().read()

    async def put(self, **entries: bytes) -> None:
        await self.change([Change(name, value) for name, value in entries.items()])

    def lose(self) -> None:
        self._kept = Kept()


class Deaf(Shelf):
    """Settings whose reading goes on when it is cancelled, as `asyncio.wait_for` of Python 3.11 may."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = asyncio.Event()

    async def version(self) -> bytes:
        self.reading.set()
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await super().version()


class Following:
    """A watcher of a shelf, and what it told."""

    def __init__(self, *, every_s: float = 3600) -> None:
        self.shelf = Shelf()
        self.clock = SetClock()
        self.taken: list[Mapping[str, bytes]] = []
        self.failures = 0
        self.watcher = Watcher(
            self.shelf, self.taken.append, self.clock, what="colours", failed=self.fail, every_s=every_s
        )

    def fail(self) -> None:
        self.failures += 1


async def test_all_is_told_at_the_start_and_then_only_what_moved() -> None:
    following = Following()
    await following.shelf.put(a=b"1")
    await following.watcher.start()
    assert following.taken == [{"a": b"1"}]
    following.shelf.asked.clear()
    await following.watcher.refresh()
    assert following.shelf.asked == ["version"]
    await following.shelf.put(b=b"2")
    await following.watcher.refresh()
    assert following.taken == [{"a": b"1"}, {"a": b"1", "b": b"2"}]
    await following.watcher.close()


async def test_a_change_is_noticed_by_itself() -> None:
    following = Following(every_s=0.01)
    await following.watcher.start()
    await following.shelf.put(a=b"1")

    async def noticed() -> bool:
        return following.taken == [{}, {"a": b"1"}]

    await until(noticed)
    await following.watcher.close()


def test_a_start_waits_for_every_time_that_a_store_is_asked() -> None:
    """Where the first question is lost, the next one is answered before calls are taken."""
    assert watcher.FIRST_WITHIN_S >= settings._TIMES_SENT * settings._WITHIN_S


async def test_a_store_that_is_away_at_the_start_is_followed_when_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    following = Following(every_s=0.01)
    following.shelf.away = True
    await following.shelf.put(a=b"1")
    await following.watcher.start()
    assert following.taken == []
    assert following.failures == 1
    following.shelf.away = False

    async def followed() -> bool:
        return following.taken == [{"a": b"1"}]

    await until(followed)
    await following.watcher.close()
    assert caplog.messages == [
        "the colours cannot be read, none hold until they can: away",
        "the colours can be read again",
    ]


async def test_the_last_known_is_kept_while_the_store_is_away_and_its_age_is_told() -> None:
    following = Following()
    await following.shelf.put(a=b"1")
    await following.watcher.start()
    following.shelf.away = True
    for _ in range(3):
        following.clock.us += 10 * SECOND
        with pytest.raises(StoreUnavailable):
            await following.watcher.refresh()
    assert following.taken == [{"a": b"1"}]
    assert (following.failures, following.watcher.age_s) == (3, 30)
    following.shelf.away = False
    await following.watcher.refresh()
    assert following.watcher.age_s == 0
    assert following.taken == [{"a": b"1"}]
    await following.watcher.close()


async def test_a_store_that_lost_all_is_given_back_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    following = Following()
    await following.shelf.put(a=b"1")
    await following.watcher.start()
    following.shelf.lose()
    await following.watcher.refresh()
    assert (await following.shelf.read()).entries == {"a": b"1"}
    assert following.taken[-1] == {"a": b"1"}
    assert caplog.messages == ["the limit store lost the colours; 1 are written back"]
    await following.watcher.close()


async def test_what_others_gave_back_first_is_what_holds() -> None:
    following = Following()
    await following.shelf.put(a=b"1")
    await following.watcher.start()
    following.shelf.lose()
    await following.shelf.put(a=b"2", b=b"3")
    await following.shelf.put(c=b"4")  # a version that was never known
    await following.watcher.refresh()
    assert following.taken[-1] == {"a": b"2", "b": b"3", "c": b"4"}
    await following.watcher.close()


async def test_a_defect_of_who_is_told_does_not_stay_silent_and_all_is_told_again() -> None:
    shelf, told, taken = Shelf(), list[str](), list[Mapping[str, bytes]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))

    def take(entries: Mapping[str, bytes]) -> None:
        if entries and not told:
            raise ZeroDivisionError
        taken.append(entries)

    watcher = Watcher(shelf, take, SetClock(), what="colours", failed=lambda: None, every_s=0.01)
    await watcher.start()
    await shelf.put(a=b"1")

    async def taken_on() -> bool:
        return taken == [{}, {"a": b"1"}]

    await until(taken_on)
    assert told == ["a background task failed, and begins anew in 0.5 s: colours watch"]
    await watcher.close()


async def test_whoever_stops_amid_a_reading_does_not_wait_for_it_even_if_it_does_not_hear_of_it() -> None:
    shelf = Deaf()
    watcher = Watcher(shelf, lambda _: None, SetClock(), what="colours", failed=lambda: None)
    starting = asyncio.create_task(watcher.start())
    await shelf.reading.wait()
    starting.cancel()
    await asyncio.sleep(0)
    assert starting.cancelled()
    async with asyncio.timeout(DEADLINE_S):
        await watcher.close()
