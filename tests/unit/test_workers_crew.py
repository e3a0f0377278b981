"""A crew whose workers are processes that do nothing: how they are kept at their number."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway import config
from gateway.clock import SystemClock
from gateway.workers.crew import Crew
from tests.processes import until

pytestmark = pytest.mark.loops("asyncio")

WORKER = f"""#!{sys.executable} -S
import json, os, signal, sys
os.write(json.loads(sys.argv[-1])["supervisor"], b"started\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
"""


async def test_a_system_that_lacks_what_a_process_takes_for_a_while_does_not_end_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "worker"
    program.write_text(WORKER)
    program.chmod(0o700)
    settings = config.Server.model_validate({"workers": 2, "listen": "127.0.0.1:0"})
    crew = Crew(settings, [str(program)], SystemClock(), lines=os.memfd_create("lines"))
    running = asyncio.create_task(crew.run())

    async def number(expected: int) -> bool:
        return len(crew.workers) == expected

    await until(lambda: number(2))
    program.rename(tmp_path / "away")  # every start fails, as where there is no memory
    crew.workers[1].send(signal.SIGKILL)
    await until(lambda: number(1))

    async def told() -> bool:
        return "worker 1 cannot be started ([Errno 2]" in caplog.text

    await until(told)
    assert not running.done()
    (tmp_path / "away").rename(program)
    await until(lambda: number(2))
    crew.stop()
    assert await running == 0


async def test_a_first_worker_that_cannot_be_started_is_told_and_ends_it(tmp_path: Path) -> None:
    settings = config.Server.model_validate({"workers": 2, "listen": "127.0.0.1:0"})
    crew = Crew(settings, [str(tmp_path / "none")], SystemClock(), lines=os.memfd_create("lines"))
    with pytest.raises(FileNotFoundError):
        await asyncio.wait_for(crew.run(), 5)
