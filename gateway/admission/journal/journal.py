"""A backlog of settlements on disk: kept in order and across crashes, handed out again until they are taken.

What dead processes left is handed out first. What is handed out twice, by two processes even, must be applied once.
Notes of calls that were admitted and have not ended are for the next process alone, which hands them out behind the
settlements: whose call was settled finds it settled.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gateway.admission.journal import line
from gateway.admission.journal.file import adopt, create
from gateway.admission.journal.queue import LeftQueue, OwnQueue
from gateway.admission.reservation import Settlement
from gateway.clock import Clock

# A file of ours: at some 900 bytes a call with four limits, three hours of 100 calls a second.
MAX_BYTES = 1 << 30

log = logging.getLogger(__name__)


class JournalUnusable(Exception):
    """The directory does not take a journal. The message says which, why and what to do."""


class Journal:
    """A `Backlog`. `dropped` is told of each settlement that it has to give up.

    Raises:
        JournalUnusable: `directory` does not serve.
    """

    def __init__(
        self, directory: Path, clock: Clock, *, dropped: Callable[[], None], max_bytes: int = MAX_BYTES
    ) -> None:
        self._clock = clock
        self._dropped = dropped
        self._full = False
        # What was handed out last, and by whom; and where its lines are.
        self._settlements: list[Settlement] = []
        self._places: list[int] = []
        self._queue: LeftQueue | OwnQueue
        try:
            self._own = OwnQueue(create(directory, now_s=clock.now()), max_bytes=max_bytes)
            self._left = [LeftQueue(file) for file in adopt(directory)]
        except OSError as error:
            raise JournalUnusable(
                f"limits.journal: cannot keep a journal in {directory}: {error.strerror}. "
                "Name a directory that exists, has room, and may be written to by this process."
            ) from error
        if self._left:
            log.warning("%s: settlements of processes that ended wait for the limit store: %d", directory, len(self))

    def __len__(self) -> int:
        """How many settlements wait, and notes of dead processes."""
        return self._own.count + sum(queue.count for queue in self._left)

    def keep(self, posts: Sequence[Settlement]) -> None:
        """Let `posts` wait behind the others; when there is no more room, the newest are dropped."""
        now_us = round(self._clock.now() * 1_000_000)
        for settlement in posts:
            if not self._own.add(line.written(settlement, now_us=now_us)):
                self._tell_full()
                self._dropped()
            if self._own.noted:
                self._own.closed(settlement.record)

    def leave(self, posts: Sequence[Settlement]) -> None:
        """Write `posts` down for the next process, as far as there is room: most likely they are booked."""
        now_us = round(self._clock.now() * 1_000_000)
        if not all(self._own.add(line.written(settlement, now_us=now_us)) for settlement in posts):
            self._tell_full()

    def note(self, post: Settlement) -> None:
        """Write `post` down for the next process, if there is room."""
        now_us = round(self._clock.now() * 1_000_000)
        if not self._own.note(post.record, line.written(post, now_us=now_us, admitted=True)):
            self._tell_full()

    def arrived(self, posts: Sequence[Settlement]) -> None:
        """Forget the notes of calls whose settlements the store has: what is left of them is harmless."""
        if self._own.noted:
            for settlement in posts:
                self._own.closed(settlement.record)

    def oldest(self, at_most: int) -> Sequence[Settlement]:
        """Return those that have waited longest and were not put aside, until they are `taken`."""
        while not self._settlements and (queue := self._first()) is not None:
            try:
                placed = queue.oldest(at_most)
            except OSError as error:
                log.critical("%s cannot be read, and is given up: %s", queue.file.path, error)
                self._give_up(queue)
                continue
            self._queue = queue
            read = [(settlement, place) for place, one in placed if (settlement := self._read(one)) is not None]
            self._settlements, self._places = [one for one, _ in read], [place for _, place in read]
            if not read:
                self.taken()
        return self._settlements

    def taken(self, aside: Collection[int] = ()) -> None:
        """Forget what was handed out last, but for some, and the file of a dead process where that was all of it."""
        queue = self._queue
        queue.taken([place for number, place in enumerate(self._places) if number in aside])
        self._settlements, self._places, self._full = [], [], False
        if isinstance(queue, LeftQueue) and not queue.count:
            self._left.remove(queue)
            queue.close()

    def again(self) -> None:
        """Have what was put aside come first."""
        for queue in self._queues():
            queue.again()

    async def close(self) -> None:
        """Have everything on disk, and leave it to whoever adopts it."""
        for queue in self._left:
            queue.close()
        self._drop(await self._own.close())

    def _tell_full(self) -> None:
        if not self._full:
            log.error("the journal is full: what comes is dropped from now on")
        self._full = True

    def _give_up(self, queue: LeftQueue | OwnQueue) -> None:
        """Go on with the next. What a dead process left stays where it is."""
        if isinstance(queue, OwnQueue):
            self._drop(queue.give_up())
        else:
            self._left.remove(queue)
            queue.close()

    def _first(self) -> LeftQueue | OwnQueue | None:
        return next((queue for queue in self._queues() if queue.waits), None)

    def _queues(self) -> list[LeftQueue | OwnQueue]:
        return [*self._left, self._own]

    def _read(self, one: bytes) -> Settlement | None:
        try:
            return line.read(one)
        except line.LineUnreadable as error:
            log.critical("a line of the journal cannot be read (%s), and is dropped: %.2000s", error, ascii(one))
            self._drop(1)
            return None

    def _drop(self, settlements: int) -> None:
        for _ in range(settlements):
            self._dropped()
