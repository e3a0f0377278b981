"""Lines of one file as a queue: of a file that a dead process left, and of our own, which grows at its end.

`count` is how many lines are left. The oldest are looked at as often as one likes, and go only once they are taken.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from gateway.admission.journal.file import HEAD, JournalFile

log = logging.getLogger(__name__)

# What the disk has not taken, in memory: as much as waits there where there is no journal.
MAX_UNWRITTEN = 32 << 20


class LeftQueue:
    """What a dead process left. Its file is removed when all is taken."""

    def __init__(self, file: JournalFile) -> None:
        self.file = file
        self.count = file.count()
        self._start = len(HEAD)

    def oldest(self, at_most: int) -> list[bytes]:
        """Return the next lines. The last of all may have been cut short.

        Raises:
            OSError: the file cannot be read.
        """
        return self.file.lines(self._start, at_most)

    def taken(self, lines: Sequence[bytes]) -> None:
        """Forget `lines`, which are the oldest."""
        self._start += sum(map(len, lines))
        self.count -= len(lines)

    def close(self) -> None:
        """Let the file go: for ever, where nothing is left."""
        if self.count:
            self.file.close()
        else:
            self.file.delete()


class OwnQueue:
    """Lines of this process. They can be taken before they are on disk, and the file is emptied whenever all are."""

    def __init__(self, file: JournalFile, *, max_bytes: int) -> None:
        self.file = file
        self.count = 0
        self._max_bytes = max_bytes
        self._start = len(HEAD)
        # Behind those in the file. The first of them are in the thread's hands, or `ahead`: taken already.
        self._unwritten: deque[bytes] = deque()
        self._unwritten_bytes = 0
        self._ahead = 0
        self._in_hands = 0
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-journal")

    def add(self, line: bytes) -> bool:
        """Take `line` and have it written; False: there is no room."""
        unwritten = self._unwritten_bytes + len(line)
        if unwritten > MAX_UNWRITTEN or self.file.size + unwritten > self._max_bytes:
            return False
        self._unwritten.append(line)
        self._unwritten_bytes = unwritten
        self.count += 1
        self._write()
        return True

    def oldest(self, at_most: int) -> list[bytes]:
        """Return the next lines.

        Raises:
            OSError: the file cannot be read.
        """
        if self._start < self.file.size:
            return self.file.lines(self._start, at_most)
        return list(islice(self._unwritten, self._ahead, self._ahead + at_most))

    def taken(self, lines: Sequence[bytes]) -> None:
        """Forget `lines`, which are the oldest; some may have come to the file since they were looked at."""
        for line in lines:
            if self._start < self.file.size:
                self._start += len(line)
            else:
                self._ahead += 1
        self.count -= len(lines)
        self._tidy()

    def give_up(self) -> int:
        """Leave out what is in the file, and return how many lines that were."""
        lost, self.count = self.count, len(self._unwritten) - self._ahead
        self._start = self.file.size
        return lost - self.count

    async def close(self) -> int:
        """Write what can be written, and let the file go, for ever where nothing is left. Return how many are lost."""
        self._write()
        while self._writing is not None:
            await asyncio.wait({self._writing})
        self._thread.shutdown()
        if self.count:
            self.file.close()
        else:
            self.file.delete()
        return len(self._unwritten) - self._ahead

    def _write(self) -> None:
        if self._writing is None and self._unwritten:
            self._in_hands = len(self._unwritten)
            loop, lines = asyncio.get_running_loop(), b"".join(self._unwritten)
            self._writing = loop.run_in_executor(self._thread, self.file.append, lines)
            self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[None]) -> None:
        written, self._in_hands, self._writing = self._in_hands, 0, None
        failure = writing.exception()
        if failure is not None:  # tried again with the next line, and at the end
            if not self._failing:
                log.error("the journal cannot be written, its lines wait in memory: %s", failure)
            self._failing = True
            return
        self._failing = False
        for _ in range(written):
            line = self._unwritten.popleft()
            self._unwritten_bytes -= len(line)
            self.file.size += len(line)
            if self._ahead:
                self._ahead -= 1
                self._start += len(line)
        self._tidy()
        self._write()

    def _tidy(self) -> None:
        """Where everything is taken, forget what is not written, and what is."""
        if self.count:
            return
        while len(self._unwritten) > self._in_hands:
            self._unwritten_bytes -= len(self._unwritten.pop())
        self._ahead = self._in_hands
        if not self._in_hands and self.file.size > len(HEAD):
            self.file.empty()
            self._start = self.file.size
