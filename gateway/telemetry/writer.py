"""Lines in, bytes out within a second, from a thread of its own: a full or closed pipe never holds up a call.

It is a text stream to `logging` and a `write` callable to the access log; being the only writer, it never mixes lines.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from threading import Event, Thread

_log = logging.getLogger(__name__)

# How long a line may wait for others: one write a second costs nothing, and an operator who watches does not notice.
FLUSH_AFTER_S = 1.0

# About 10 MB of access log: some seconds of a busy gateway before a reader that does not read.
MAX_LINES = 20_000

# What closing waits for a reader that does not read; every other part of stopping is done by then.
CLOSE_WITHIN_S = 2.0


def standard_output(data: bytes) -> None:
    """Write all of `data` to the process's standard output, without Python's own buffer and its lock."""
    if sys.__stdout__ is None:  # closed before the start: descriptor 1 may be anything by now
        return
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sys.__stdout__.fileno(), rest) :]


class LineWriter:
    """Keeps lines until its thread hands them to `sink`; start it, and close it last.

    Lines beyond `MAX_LINES` and those whose write failed are lost; how many is said in a warning once writing works.
    """

    def __init__(self, sink: Callable[[bytes], object] = standard_output) -> None:
        self._sink = sink
        self._lines: deque[str] = deque()
        self._overflowed = 0  # written by callers; `_failed` and `_reported` by the thread
        self._failed = 0
        self._reported = 0
        self._due = Event()
        self._closing = False
        # A daemon: a reader that never reads again must not keep the process from ending.
        self._thread = Thread(target=self._run, name="gateway-lines", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write(self, line: str) -> None:
        """Take one line, newline included. Never waits and never fails."""
        if len(self._lines) < MAX_LINES:
            self._lines.append(line)
        else:
            self._overflowed += 1

    def flush(self) -> None:
        """Have what was taken written now; does not wait for it."""
        self._due.set()

    def close(self) -> None:
        """Write what was taken and stop; gives up after `CLOSE_WITHIN_S`."""
        self._closing = True
        self._due.set()
        self._thread.join(CLOSE_WITHIN_S)

    def _run(self) -> None:
        while not self._closing:
            self._due.wait(FLUSH_AFTER_S)
            self._due.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            self._sink("".join(lines).encode(errors="backslashreplace"))
        except (OSError, ValueError):  # ValueError: standard output was closed in this process
            self._failed += len(lines)
            return
        lost = self._overflowed + self._failed - self._reported
        if lost:
            self._reported += lost
            _log.warning("%d log lines were lost: their reader was gone or too slow", lost)
