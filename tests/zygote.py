"""A process that has imported the gateway and forks: a gateway or an engine starts at once, and for hardly any CPU.

What it forks is a process of its own as any command is: it can be killed, frozen and told to stop, and its memory and
files are its own. `python -m tests.zygote PATH` listens on a Unix socket: it gets a line of JSON for each start, and
answers with the process's id and, in the end, its exit code.
"""

import asyncio
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop  # noqa: F401 before the forks, as the commands

import gateway.commands.engine
import gateway.commands.serve  # noqa: F401 likewise
from gateway import cli

_ROOT = Path(__file__).parent.parent
_READY = b"ready\n"


class Forked:
    """A process that was forked. To its owner it is as one of `asyncio.subprocess`."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ending = asyncio.create_task(self._end(reader, writer))

    async def wait(self) -> int:
        """Wait until it ended; return its exit code, or the negated signal that ended it."""
        return await asyncio.shield(self._ending)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        self.returncode = code = int(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return code


class Zygote:
    """The process, as long as it is needed. Each process that it starts has to end before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._environment = _environment()

    @property
    def is_as_a_command(self) -> bool:
        """Whether a command that is started now would have its environment: modules look at it as they are imported."""
        return self._environment == _environment()

    async def start(self, arguments: Sequence[str], log: Path, *, without: Sequence[str] = ()) -> Forked:
        """Run `gateway` with these arguments, as if the modules `without` were not installed; both streams to `log`."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        asked = {"arguments": arguments, "log": str(log), "without": without}
        writer.write(json.dumps(asked).encode() + b"\n")
        return Forked(int(await reader.readline()), reader, writer)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)  # noqa: TID251 that of processes, and none of the gateway's settings
    environment.pop("PYTEST_CURRENT_TEST", None)
    return environment


@contextmanager
def running_zygote() -> Iterator[Zygote]:
    """Have one, with all imported."""
    with tempfile.TemporaryDirectory(prefix="gateway-zygote-") as folder:
        path, pipe = Path(folder) / "socket", subprocess.PIPE
        command = [sys.executable, "-m", "tests.zygote", str(path)]
        with subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == _READY
            yield Zygote(path)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote | None]:
    """Give the one of this run. Where a test has None in its place, commands are started as users start them."""
    with running_zygote() as running:
        yield running


def main(path: str) -> None:
    """Listen for what to start until standard input ends; in the processes that are forked, be what is started."""
    gc.freeze()
    asked = _forked(path)
    if asked is None:
        return
    _take_streams(asked["log"])
    sys.modules.update(dict.fromkeys(asked["without"]))  # None: as where it is not installed
    sys.argv = ["gateway", *asked["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]  # a supervisor has its workers begin so
    cli.main(prog_name="gateway")


def _forked(path: str) -> Any:
    """Fork at each connection; return, in the new process only, what was asked for. None: nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks that watch
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, _READY)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    return _watched(connection)
    return None


def _watched(connection: socket.socket) -> Any:
    """Fork once more; return in the new process, and tell its id and its end in this one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked = json.loads(connection.makefile("rb").readline())
    pid = os.fork()
    if pid == 0:
        return asked
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _take_streams(log: str) -> None:
    """Have nothing on standard input, and both outputs in the log."""
    for target, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(1, 2)


if __name__ == "__main__":
    main(sys.argv[1])
