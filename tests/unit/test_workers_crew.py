"""A crew whose workers are processes that do nothing: how they are kept at their number."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway import config
from gateway.clock import Clock, SystemClock
from gateway.workers.crew import Crew
from gateway.workers.worker import WorkerSilent
from tests.deadlines import DEADLINE_S
from tests.leaping import leaping
from tests.processes import until

Working = tuple[Crew, "asyncio.Task[int]"]

pytestmark = pytest.mark.loops("asyncio")

# It ends when it was told to as many times as its first argument says, and writes down each time.
WORKER = f"""#!{sys.executable} -S
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(json.loads(sys.argv[-1])["supervisor"], b"started\\n")
for _ in range(int(sys.argv[1])):
    signal.sigwait([signal.SIGTERM])
    with open(sys.argv[0] + ".told", "a") as told:
        told.write("x")
"""


class LateClock(SystemClock):
    """The machine's clock, and what a test says that has passed besides."""

    late_s = 0.0

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return super().monotonic() + self.late_s


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "worker"
    path.write_text(WORKER)
    path.chmod(0o700)
    return path


@asynccontextmanager
async def working(program: Path, *, ends_when_told: int = 1, clock: Clock | None = None) -> AsyncIterator[Working]:
    """Have a crew of two, which are up."""
    settings = config.Server.model_validate({"workers": 2, "listen": "127.0.0.1:0"})
    lines = os.memfd_create("lines")
    crew = Crew(settings, [str(program), str(ends_when_told)], clock or SystemClock(), lines=lines)
    running = asyncio.create_task(crew.run())
    try:
        await until(partial(number_is, crew, 2))
        yield crew, running
        assert running.done()
    finally:
        for one in crew.workers:
            one.send(signal.SIGKILL)
        os.close(lines)


async def number_is(crew: Crew, expected: int) -> bool:
    return len(crew.workers) == expected


async def test_a_system_that_lacks_what_a_process_takes_for_a_while_does_not_end_the_gateway(
    program: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(program) as (crew, running):
        take_away(program)  # every start fails, as where there is no memory
        crew.workers[1].send(signal.SIGKILL)
        await until(partial(said, caplog, "worker 1 cannot be started ([Errno 2]"))
        assert len(crew.workers) == 1
        assert not running.done()
        bring_back(program)
        await until(partial(number_is, crew, 2))
        crew.stop()
        assert await running == 0


def take_away(program: Path) -> None:
    program.rename(program.with_name("away"))


def bring_back(program: Path) -> None:
    program.with_name("away").rename(program)


async def said(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    return what in caplog.text


@pytest.mark.loops("leaping")
async def test_told_to_stop_it_waits_for_no_worker_that_is_to_be_started_later(
    program: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(program) as (crew, running):
        take_away(program)
        crew.workers[0].send(signal.SIGKILL)
        loop, _ = leaping()
        while "it is tried again in 8 s" not in caplog.text:
            await loop.leap(0.1)
        crew.stop()
        assert await asyncio.wait_for(running, 4) == 0


async def test_a_worker_that_has_ended_is_silent_and_shown_as_it_last_was(program: Path) -> None:
    """As it is for whoever scrapes between its end and its leaving the crew."""
    async with working(program) as (crew, running):
        workers = crew.workers
        crew.stop()
        assert await running == 0
    for one in workers:
        with pytest.raises(WorkerSilent):
            await one.ask("GET", "/readyz", within_s=DEADLINE_S)
        await one.tell(within_s=DEADLINE_S)
        assert one.silent


async def test_told_again_it_tells_its_workers_again(program: Path) -> None:
    async with working(program, ends_when_told=2) as (crew, running):
        crew.stop()
        await until(partial(both_heard, program))
        assert len(crew.workers) == 2
        crew.stop()
        assert await running == 0


async def both_heard(program: Path) -> bool:
    told = program.with_name(f"{program.name}.told")
    return told.exists() and len(told.read_text()) == 2


async def test_workers_that_do_not_end_in_time_are_killed_and_that_is_a_failure(
    program: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LateClock()
    async with working(program, ends_when_told=1000, clock=clock) as (crew, running):
        crew.stop()
        await asyncio.sleep(0.1)
        assert len(crew.workers) == 2
        clock.late_s = 60.0
        assert await running == 1
    assert "2 workers did not end in time, and are killed" in caplog.text


async def test_a_first_worker_that_cannot_be_started_is_told_and_ends_it(tmp_path: Path) -> None:
    settings = config.Server.model_validate({"workers": 2, "listen": "127.0.0.1:0"})
    crew = Crew(settings, [str(tmp_path / "none")], SystemClock(), lines=os.memfd_create("lines"))
    with pytest.raises(FileNotFoundError):
        await asyncio.wait_for(crew.run(), DEADLINE_S)


async def test_what_a_worker_says_when_it_ends_amid_a_line_is_no_defect(program: Path) -> None:
    speak_on(program, "holds [{")
    async with working(program) as (crew, running):
        heard = [one._listening for one in crew.workers]
        crew.stop()
        assert await running == 0
    assert [one.exception() for one in heard] == [None, None]


def speak_on(program: Path, rest: str) -> None:
    program.write_text(WORKER.replace("started\\n", f"started\\n{rest}"))
