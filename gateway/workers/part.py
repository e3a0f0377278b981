"""What a worker process has of its supervisor: sockets, the config that holds, a line to it, a lock around log lines.

What is said to the supervisor waits for nobody.
"""

import asyncio
import fcntl
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from gateway.client.port import Given
from gateway.config.file import Loaded
from gateway.telemetry.writer import standard_output
from gateway.workers import held

# How long the last figures may take to be handed in: the supervisor only reads.
_HAND_IN_S = 2.0

STARTED = b"started\n"
LEAVING = b"leaving "
HOLDS = b"holds "


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What is inherited, by number; as the hidden option `--worker` has it."""

    worker: int
    tenants: Sequence[int]
    operators: int
    supervisor: int
    lines: int
    config: int

    @property
    def all(self) -> tuple[int, ...]:
        """Those that have to stay open in the new process."""
        return *self.tenants, self.operators, self.supervisor, self.lines, self.config

    def option(self) -> str:
        """Return the option's value."""
        return json.dumps(asdict(self), separators=(",", ":"))


def write_in_turn(lines: int, data: bytes) -> None:
    """Write whole lines to standard output, which other processes have too: within a large write a pipe takes turns.

    `lines` is a file of no other use. Who dies while it writes loses the lock with its life.
    """
    fcntl.lockf(lines, fcntl.LOCK_EX)
    try:
        standard_output(data)
    finally:
        fcntl.lockf(lines, fcntl.LOCK_UN)


class Part:
    """This process as one of several. Made of what `--worker` says; every method is for the event loop's thread.

    `config` is what the config was read from that holds in the gateway, whatever is in these files by now.
    """

    def __init__(self, option: str) -> None:
        fields: dict[str, Any] = json.loads(option)
        inherited = Descriptors(**fields)
        self.given = Given(
            inherited.worker,
            [socket.socket(fileno=one) for one in inherited.tenants],
            socket.socket(fileno=inherited.operators),
        )
        self._supervisor = socket.socket(fileno=inherited.supervisor)
        self._line: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self._lines = inherited.lines
        with os.fdopen(inherited.config, "rb") as config:
            self.config = held.read(config.read()).files

    def write(self, data: bytes) -> None:
        """Write whole lines to standard output."""
        write_in_turn(self._lines, data)

    async def follow(self, stop: Callable[[], object]) -> None:
        """Call `stop` when the supervisor has gone, however it ended: nobody would ever end this process."""

        def gone() -> None:
            self._gone.set()
            stop()

        loop = asyncio.get_running_loop()
        self._line, _ = await loop.create_unix_connection(lambda: _Line(gone), sock=self._supervisor)

    def started(self) -> None:
        """Say that tenants are served."""
        self._say(STARTED)

    def accepted(self, config: Loaded) -> None:
        """Say which config holds from now on: who comes later begins with it."""
        self._say(HOLDS + held.written(held.of(config)) + b"\n")

    def leaving(self, within_s: float) -> None:
        """Say how long calls may go on from now: the config may say otherwise than at the supervisor's start."""
        self._say(LEAVING + f"{within_s}\n".encode("ascii"))

    async def hand_in(self, figures: bytes) -> None:
        """Leave the figures of a process that is about to end."""
        self._say(figures + b"\n")
        if self._line is not None:
            self._line.close()  # once all is sent
            with suppress(TimeoutError):
                async with asyncio.timeout(_HAND_IN_S):
                    await self._gone.wait()

    def _say(self, line: bytes) -> None:
        if self._line is not None and not self._line.is_closing():
            self._line.write(line)


class _Line(asyncio.Protocol):
    """The supervisor never sends anything: it is there for as long as this line is."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell that it has gone."""
        self._gone()
