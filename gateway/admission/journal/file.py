"""One file of the journal: a head that names its format, then a settlement a line. Whoever has its lock owns it.

The system lets the lock go with its process, however that ended, so what nobody has locked is a dead process's.
"""

import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

HEAD = b'{"journal":1}\n'

_SUFFIX = ".jsonl"
_BLOCK = 1 << 20


class JournalFile:
    """An open file that is locked. `size` is how much of it is on disk, as its owner knows."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor

    def append(self, data: bytes) -> None:
        """Write `data` behind all else, and wait until it is on disk; `size` does not know it yet.

        What could not be written whole is taken back.

        Raises:
            OSError: it is not there.
        """
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise

    def lines(self, start: int, at_most: int) -> list[bytes]:
        """Return whole lines from `start` on. The file's last may have been cut short with the process that wrote it.

        Raises:
            OSError: it cannot be read.
        """
        block = os.pread(self._descriptor, min(_BLOCK, self.size - start), start)
        lines = block.splitlines(keepends=True)
        if start + len(block) < self.size:
            del lines[-1:]  # the rest of it is in the next block
        if not lines:
            raise OSError(errno.EIO, "it is shorter than it was, or a line longer than a block")
        return lines[:at_most]

    def lines_at(self, places: Sequence[int]) -> list[bytes]:
        """Return the lines that begin at the first of `places`, as many as one block has in this order.

        Raises:
            OSError: they cannot be read.
        """
        first, lines = places[0], list[bytes]()
        block = os.pread(self._descriptor, min(_BLOCK, self.size - first), first)
        for place in places:
            start = place - first
            end = block.find(b"\n", start) + 1 if start >= 0 else 0
            if not end and first + len(block) == self.size:
                end = len(block)  # the file's last
            if not 0 <= start < end:
                break  # in another block
            lines.append(block[start:end])
        if not lines:
            raise OSError(errno.EIO, "it is shorter than it was")
        return lines

    def count(self) -> int:
        """Return how many lines there are after the head."""
        blocks = [os.pread(self._descriptor, _BLOCK, start) for start in range(len(HEAD), self.size, _BLOCK)]
        return sum(block.count(b"\n") for block in blocks) + bool(blocks and not blocks[-1].endswith(b"\n"))

    def empty(self) -> None:
        """Forget all lines."""
        os.ftruncate(self._descriptor, len(HEAD))
        self.size = len(HEAD)

    def delete(self) -> None:
        """Remove it, and let it go."""
        self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let it go, to whoever adopts it."""
        os.close(self._descriptor)


def create(directory: Path, *, now_s: float) -> JournalFile:
    """Make a file of this process's own.

    Raises:
        OSError: the directory is not there, or does not take a file with bytes in it.
    """
    since = datetime.fromtimestamp(now_s, UTC)
    while True:
        path = directory / f"settlements-{since:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}{_SUFFIX}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with ExitStack() as unless_made:
            unless_made.callback(os.close, descriptor)
            if not _lock(descriptor, path):
                continue  # another process took it for a dead one's in this moment, and removes it
            unless_made.callback(path.unlink)
            file = JournalFile(path, descriptor, 0)
            file.append(HEAD)
            file.size = len(HEAD)
            _keep_name(directory)
            unless_made.pop_all()
            return file


def adopt(directory: Path) -> Iterator[JournalFile]:
    """Yield the files of processes that are dead, oldest first. One without lines is removed.

    Raises:
        OSError: a file cannot be read or locked.
    """
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # whoever had it is done with it
        except PermissionError:
            log.critical("%s may not be opened; it stays where it is, and what waits in it is not charged", path)
            continue
        if not _lock(descriptor, path):
            os.close(descriptor)
            continue
        file = JournalFile(path, descriptor, os.fstat(descriptor).st_size)
        if file.size <= len(HEAD):
            file.delete()
        elif os.pread(descriptor, len(HEAD), 0) == HEAD:
            yield file
        else:
            log.error("%s is no journal that this version can read; it stays where it is", path)
            file.close()


def _lock(descriptor: int, path: Path) -> bool:
    """Take the lock, unless another process has it, or had it and removed the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _keep_name(directory: Path) -> None:
    """Have the directory's entries on disk: a file that is, under a name that is not, is lost with the power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
