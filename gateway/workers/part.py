"""What a worker process has of its supervisor: sockets to listen on, a line to it, and a lock around its log lines."""

import asyncio
import fcntl
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from gateway.client.port import Given
from gateway.telemetry.writer import standard_output

# How long the last figures may take to be handed in: the supervisor only reads.
_HAND_IN_S = 2.0

STARTED = b"started\n"
LEAVING = b"leaving "


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What is inherited, by number; as the hidden option `--worker` has it."""

    worker: int
    tenants: Sequence[int]
    operators: int
    supervisor: int
    lines: int

    @property
    def all(self) -> tuple[int, ...]:
        """Those that have to stay open in the new process."""
        return *self.tenants, self.operators, self.supervisor, self.lines

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
    """This process as one of several. Made of what `--worker` says; every method is for the event loop's thread."""

    def __init__(self, option: str) -> None:
        fields: dict[str, Any] = json.loads(option)
        inherited = Descriptors(**fields)
        self.given = Given(
            inherited.worker,
            [socket.socket(fileno=one) for one in inherited.tenants],
            socket.socket(fileno=inherited.operators),
        )
        self._supervisor = socket.socket(fileno=inherited.supervisor)
        self._lines = inherited.lines

    def write(self, data: bytes) -> None:
        """Write whole lines to standard output."""
        write_in_turn(self._lines, data)

    def follow(self, stop: Callable[[], object]) -> None:
        """Call `stop` when the supervisor has gone, however it ended: nobody would ever end this process."""
        loop, supervisor = asyncio.get_running_loop(), self._supervisor.fileno()

        def gone() -> None:
            loop.remove_reader(supervisor)
            stop()

        loop.add_reader(supervisor, gone)  # it never sends anything

    def started(self) -> None:
        """Say that tenants are served."""
        with suppress(OSError):
            self._supervisor.sendall(STARTED)

    def leaving(self, within_s: float) -> None:
        """Say how long calls may go on from now: the config may say otherwise than at the supervisor's start."""
        with suppress(OSError):
            self._supervisor.sendall(LEAVING + f"{within_s}\n".encode("ascii"))

    def hand_in(self, figures: bytes) -> None:
        """Leave the figures of a process that is about to end."""
        self._supervisor.settimeout(_HAND_IN_S)
        with suppress(OSError):  # the supervisor has gone
            self._supervisor.sendall(figures + b"\n")
