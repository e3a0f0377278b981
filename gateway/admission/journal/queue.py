"""Lines of one file as a queue: of a file that a dead process left, and of our own, which grows at its end.

`count` is how many lines are left to hand out, those that were put aside among them. The oldest are looked at as often
as one likes, and go only once they are taken. A line's place is where it begins in the file, or will.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from gateway.admission.journal.aside import Aside
from gateway.admission.journal.file import HEAD, JournalFile
from gateway.admission.journal.line import is_note

log = logging.getLogger(__name__)

# What the disk has not taken, in memory: as much as waits there where there is no journal.
MAX_UNWRITTEN = 32 << 20


class Placed(NamedTuple):
    """A line and its place."""

    place: int
    line: bytes


class LeftQueue:
    """What a dead process left: its settlements, and when those are handed out its notes. Then its file is removed."""

    def __init__(self, file: JournalFile) -> None:
        self.file = file
        self.count = file.count()
        self._aside = Aside()
        self._start = len(HEAD)
        self._of_notes = False  # which of the lines it is at
        # What `oldest` returned: lines that come again; or those from the start on, and those that were not meant.
        self._came_again = 0
        self._lines: Sequence[bytes] = ()

    @property
    def waits(self) -> bool:
        """Whether there is any line that is not put aside."""
        return self.count > len(self._aside)

    def oldest(self, at_most: int) -> list[Placed]:
        """Return the next lines, or none where the next of the file are not meant. The last may have been cut short.

        Raises:
            OSError: the file cannot be read.
        """
        self._lines, places = (), self._aside.oldest(at_most)
        if places:
            again = self.file.lines_at(places)
            self._came_again = len(again)
            return list(map(Placed, places, again))
        self._lines, self._came_again = self.file.lines(self._start, at_most), 0
        return [one for one in _placed(self._lines, self._start) if is_note(one.line) is self._of_notes]

    def taken(self, aside: Collection[int] = ()) -> None:
        """Forget what `oldest` returned, but for lines at places that are put `aside`."""
        self._aside.taken(self._came_again)
        self._aside.put(aside)
        meant = sum(is_note(line) is self._of_notes for line in self._lines)
        self.count -= self._came_again + meant - len(aside)
        self._start += sum(map(len, self._lines))
        self._lines, self._came_again = (), 0
        if self._start >= self.file.size and not self._of_notes:
            self._start, self._of_notes = len(HEAD), True

    def again(self) -> None:
        """Have what was put aside come first."""
        self._aside.again()

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
        self._aside = Aside()
        self._start = len(HEAD)
        # Behind those in the file. The first of them are in the thread's hands, or `ahead`: before the start already.
        self._unwritten: deque[bytes] = deque()
        self._unwritten_bytes = 0
        self._ahead = 0
        self._in_hands = 0
        # What `oldest` returned: lines that come again; or those from the start on, notes among them.
        self._came_again = 0
        self._lines: Sequence[bytes] = ()
        self._noted: set[str] = set()
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-journal")

    @property
    def noted(self) -> bool:
        """Whether there are notes of calls that have not ended."""
        return bool(self._noted)

    @property
    def waits(self) -> bool:
        """Whether there is any line that is not put aside."""
        return self.count > len(self._aside)

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

    def oldest(self, at_most: int) -> list[Placed]:
        """Return the next lines.

        Raises:
            OSError: the file cannot be read.
        """
        self._lines, places = (), self._aside.oldest(at_most)
        if places:
            again = self._at(places)
            self._came_again = len(again)
            return again
        if self._start < self.file.size:
            lines = self.file.lines(self._start, at_most)
        else:
            lines = list(islice(self._unwritten, self._ahead, self._ahead + at_most))
            assert lines, "it has what it counts"
        self._lines, self._came_again = lines, 0
        return [one for one in _placed(lines, self._start) if not is_note(one.line)]

    def _at(self, places: Sequence[int]) -> list[Placed]:
        """Return lines at some of these places, the first ones: all that are in the file, or all that are not."""
        if places[0] < self.file.size:
            in_file = [place for place in places if place < self.file.size]
            return list(map(Placed, in_file, self.file.lines_at(in_file)))
        meant = set(places)
        found = [one for one in _placed(self._unwritten, self.file.size) if one.place in meant]
        assert found, "what is not in the file is about to be written"
        return found

    def taken(self, aside: Collection[int] = ()) -> None:
        """Forget what `oldest` returned, but for lines at places that are put `aside`.

        Some lines may have come to the file since they were looked at.
        """
        self._aside.taken(self._came_again)
        self._aside.put(aside)
        self.count -= self._came_again + sum(not is_note(line) for line in self._lines) - len(aside)
        for line in self._lines:
            self._ahead += self._start >= self.file.size
            self._start += len(line)
        self._lines, self._came_again = (), 0
        self._tidy()

    def again(self) -> None:
        """Have what was put aside come first."""
        self._aside.again()

    def give_up(self) -> int:
        """Leave out what is in the file, and return how many lines that were."""
        lost, self.count = self.count, self._unwritten_count()
        self._aside.forget_before(self.file.size)
        self._start = max(self._start, self.file.size)
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
        """Return how many lines are left to hand out that are not in the file."""
        front = sum(not is_note(line) for line in islice(self._unwritten, self._ahead, None))
        return front + self._aside.count_from(self.file.size)

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
        self._ahead = max(self._ahead - written, 0)
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
        self._start = self.file.size + self._unwritten_bytes


def _placed(lines: Collection[bytes], start: int) -> list[Placed]:
    """Return lines that follow one another from `start` on, with their places."""
    placed = []
    for line in lines:
        placed.append(Placed(start, line))
        start += len(line)
    return placed
