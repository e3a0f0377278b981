"""What becomes of whoever waits when the lane itself fails."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from gateway.admission.lane import Lane
from gateway.admission.link import Link
from gateway.admission.store import StoreUnavailable
from gateway.clock import SystemClock
from tests.limiting import Remembering


class Defective(Link):
    """A link with a defect that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1/0", [])

    async def open(self, *, within_s: float) -> None:
        """There is nothing to connect to."""

    async def exchange(self, commands: Sequence[bytes], *, within_s: float) -> NoReturn:
        raise ZeroDivisionError(commands, within_s)


async def test_a_defect_leaves_nobody_waiting_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    lane = Lane(Defective(), SystemClock(), timeout_s=1, observer=Remembering())
    lane.start()
    replies: list[Any] = [lane.ask("reserve", b"").reply for _ in range(3)]
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*replies, return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) and answer.sent for answer in answers)
    with pytest.raises(StoreUnavailable):
        lane.ask("reserve", b"")
    await lane.close()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
