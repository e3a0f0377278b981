"""One worker process as its supervisor sees it, from its start to its end."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import aiohttp

from gateway.telemetry import figures
from gateway.telemetry.figures import Figures
from gateway.workers import held
from gateway.workers.held import Held
from gateway.workers.part import HOLDS, LEAVING, STARTED, Descriptors

# What a scrape of thousands of series may take, and all of it waits in memory.
_LONGEST_LINE = 1 << 28
_BACKLOG = 64
# How long the last words of a process that has ended may take: they are in the kernel by then.
_LAST_WORDS_S = 2.0


class WorkerSilent(Exception):
    """It gave no answer, or not in time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer to an operator."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Worker:
    """A process that was started. `figures` are the last that it told, and `silent` whether it owes newer ones.

    `accepted` is told which config holds in it, whenever that is another. `leaves_within_s` is how long its calls may
    go on, once it is about to stop.
    """

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        line: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        operators: str,
        *,
        accepted: Callable[[Held], object],
    ) -> None:
        self.number = number
        self.started = asyncio.Event()
        self.figures: Figures = {}
        self.silent = False
        self.leaves_within_s: float | None = None
        self._process = process
        self._accepted = accepted
        told, self._line = line
        self._reload = False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(operators, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._listening = asyncio.create_task(self._listen(told), name=f"worker {number}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def reload(self) -> None:
        """Have it reload: one that starts would die of this signal, and is told once it has."""
        if self.started.is_set():
            self.send(signal.SIGHUP)
        self._reload = not self.started.is_set()

    async def ended(self) -> int:
        """Wait until it has ended; return its exit code, or what killed it as a negative number."""
        code = await self._process.wait()
        await asyncio.wait((self._listening,), timeout=_LAST_WORDS_S)
        self._listening.cancel()
        self._line.close()
        await self._session.close()
        return code

    async def ask(
        self,
        method: str,
        target: str,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Return what its operator listener answers.

        Raises:
            WorkerSilent: nothing came within `within_s`, or it has ended.
        """
        if self._session.closed:  # of which aiohttp makes an error of ours
            raise WorkerSilent(f"worker {self.number} has ended")
        url = "http://worker" + target
        try:
            async with (
                asyncio.timeout(within_s),
                self._session.request(method, url, headers=headers, data=body, allow_redirects=False) as answer,
            ):
                return Reply(answer.status, answer.headers, await answer.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise WorkerSilent(f"worker {self.number}: {type(error).__name__}") from error

    async def tell(self, *, within_s: float) -> None:
        """Have its figures told anew; where they do not come in time, the last ones stay."""
        try:
            reply = await self.ask("GET", "/metrics", within_s=within_s, headers={"Accept": figures.CONTENT_TYPE})
            told = await asyncio.to_thread(figures.read, reply.body)
        except (WorkerSilent, ValueError):
            self.silent = True
            return
        self.silent = False
        self.figures = told

    async def _listen(self, told: asyncio.StreamReader) -> None:
        """Follow what it says of itself until it has ended, be it amid a line."""
        while (line := await told.readline()).endswith(b"\n"):
            if line.startswith(LEAVING):
                self.leaves_within_s = float(line.removeprefix(LEAVING))
            elif line.startswith(HOLDS):
                self._accepted(held.read(line.removeprefix(HOLDS)))
            elif line != STARTED:
                self.figures = figures.read(line)
            else:
                self.started.set()
                if self._reload:
                    self.reload()


async def start(
    number: int,
    command: Sequence[str],
    tenants: Sequence[socket.socket],
    *,
    lines: int,
    config: Held,
    accepted: Callable[[Held], object],
) -> Worker:
    """Start a process that runs `command` as worker `number`, on bound sockets which stay their giver's too.

    It begins with `config`. Its group is its own: what a terminal sends to all is for
    the supervisor to pass on.

    Raises:
        OSError: the system lacks what a process takes.
    """
    with socket.socket(socket.AF_UNIX) as operators, os.fdopen(os.memfd_create("gateway-config"), "w+b") as file:
        file.write(held.written(config))
        file.seek(0)
        operators.bind("")  # to a name that the kernel finds, and no file (unix(7), autobind)
        operators.listen(_BACKLOG)
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as unless_started:
            unless_started.callback(ours.close)
            given = Descriptors(
                number,
                [one.fileno() for one in tenants],
                operators.fileno(),
                theirs.fileno(),
                lines,
                file.fileno(),
            )
            process = await asyncio.create_subprocess_exec(
                *command,
                "--worker",
                given.option(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=given.all,
                start_new_session=True,
            )
            unless_started.pop_all()
        line = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
        return Worker(number, process, line, operators.getsockname().decode("ascii"), accepted=accepted)
