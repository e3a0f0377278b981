"""Lines of one file as a queue: of a file that a dead process left, and of our own, which grows at its end.

`count` is how many lines are left to hand out. The oldest are looked at as often as one likes, and go only once they
are taken.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from gateway.admission.journal.file import HEAD, JournalFile
from gateway.admission.journal.line import is_note

log = logging.getLogger(__name__)

# What the disk has not taken, in memory: as much as waits there where there is no journal.
MAX_UNWRITTEN = 32 << 20


class LeftQueue:
    """What a dead process left: its settlements, and when those are taken its notes. Then its file is removed."""

    def __init__(self, file: JournalFile) -> None:
        self.file = file
        self.count = file.count()
        self._start = len(HEAD)
        self._of_notes = False  # which of the lines it is at

    def hands_out(self, line: bytes) -> bool:
        """Whether `line` is meant this time."""
        return is_note(line) is self._of_notes

    def oldest(self, at_most: int) -> list[bytes]:
        """Return the next lines. The last of all may have been cut short.

        Raises:
            OSError: the file cannot be read.
        """
        return self.file.lines(self._start, at_most)

    def taken(self, lines: Sequence[bytes]) -> None:
        """Forget `lines`, which are the oldest."""
        self._start += sum(map(len, lines))
        self.count -= sum(map(self.hands_out, lines))
        if self._start >= self.file.size and not self._of_notes:
            self._start, self._of_notes = len(HEAD), True

    def close(self) -> None:
        """Let the file go: for ever, where nothing is left."""
        if self.count:
            self.file.close()
        else:
            self.file.delete()


class OwnQueue:
    """Lines of this process. They can be taken before they are on disk, and the file is emptied whenever all are.

    Not while it has notes of calls under way: they are written for the next process, and never handed out here.
    """

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
        self._noted: set[str] = set()
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-journal")

    @property
    def noted(self) -> bool:
        """Whether there are notes of calls that have not ended."""
        return bool(self._noted)

    def hands_out(self, line: bytes) -> bool:
        """Whether `line` is no note."""
        return not is_note(line)

    def note(self, record: str, line: bytes) -> bool:
        """Take the note of the call with that record, as `add`, and keep it until it is `closed`."""
        if room := self._append(line):
            self._noted.add(record)
        return room

    def closed(self, record: str) -> None:
        """Let the note of a call go, if there is one."""
        if record in self._noted:
            self._noted.remove(record)
            self._tidy()

    def add(self, line: bytes) -> bool:
        """Take `line` and have it written; False: there is no room."""
        if room := self._append(line):
            self.count += 1
        return room

    def _append(self, line: bytes) -> bool:
        unwritten = self._unwritten_bytes + len(line)
        if unwritten > MAX_UNWRITTEN or self.file.size + unwritten > self._max_bytes:
            return False
        self._unwritten.append(line)
        self._unwritten_bytes = unwritten
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
        self.count -= sum(map(self.hands_out, lines))
        self._tidy()

    def give_up(self) -> int:
        """Leave out what is in the file, and return how many lines that were."""
        lost, self.count = self.count, self._unwritten_count()
        self._start = self.file.size
        return lost - self.count

    async def close(self) -> int:
        """Write what can be written, and let the file go, for ever where nothing is left. Return how many are lost."""
        self._write()
        while self._writing is not None:
            await asyncio.wait({self._writing})
        self._thread.shutdown()
        if self.count or self._noted:
            self.file.close()
        else:
            self.file.delete()
        return self._unwritten_count()

    def _unwritten_count(self) -> int:
        return sum(map(self.hands_out, islice(self._unwritten, self._ahead, None)))

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
        if self.count or self._noted:
            return
        while len(self._unwritten) > self._in_hands:
            self._unwritten_bytes -= len(self._unwritten.pop())
        self._ahead = self._in_hands
        if not self._in_hands and self.file.size > len(HEAD):
            self.file.empty()
            self._start = self.file.size
