"""The bytes of a local file, read in a thread of its own: a disk that hangs holds up no call, nor the gateway's end."""

import asyncio
from pathlib import Path

from gateway import background


class LocalFile:
    """One file, of which at most `max_bytes` are of use. While one reading hangs no other begins: it is waited for."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._reading: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """Return what the file holds, or one byte more than `max_bytes` of it. The caller limits its time.

        Raises:
            OSError: it cannot be read.
        """
        reading = self._reading
        if reading is None or reading.done():
            apart = background.apart(self._read, name=f"reading {self.path}")
            reading = self._reading = asyncio.create_task(apart)
            reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # perhaps unheard
        await asyncio.wait([reading])  # `wait`, because who waits no longer must not end it for others
        return reading.result()

    def _read(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(self._max_bytes + 1)
