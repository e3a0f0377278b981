"""`gateway` that is started again whenever it was killed, with all imported: `python -m tests.again serve …`.

A start takes a fraction of its time then, so that a test can kill as many as it likes.
"""

import os
import signal
import sys
from types import FrameType

import gateway.commands.serve  # noqa: F401 before the forks
from gateway.cli import main


def end(_number: int, _frame: FrameType | None) -> None:
    """Kill the one that runs, and end."""
    os.kill(child, signal.SIGKILL)
    sys.exit(0)


if __name__ == "__main__":
    while True:
        child = os.fork()
        if child == 0:
            main(prog_name="gateway")
        signal.signal(signal.SIGTERM, end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            sys.exit(f"the gateway ended with {code}")
