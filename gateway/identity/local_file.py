"""The bytes of a local file, read in a thread of its own: a disk that hangs holds up no call, nor the gateway's end.

asyncio's own threads are few, so that what hangs in them takes them from others; and the process waits for each.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from threading import Thread


class LocalFile:
    """One file, of which at most `max_bytes` are of use. While one reading hangs no other begins: it is waited for."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._reading: asyncio.Future[bytes | OSError] | None = None

    async def read(self) -> bytes:
        """Return what the file holds, or one byte more than `max_bytes` of it. The caller limits its time.

        Raises:
            OSError: it cannot be read.
        """
        reading = self._reading
        if reading is None or reading.done():
            loop = asyncio.get_running_loop()
            reading = self._reading = loop.create_future()
            Thread(target=self._read, args=(loop, reading), name=f"reading {self.path}", daemon=True).start()
        await asyncio.wait([reading])  # `wait`, because who waits no longer must not end it for others
        found = reading.result()
        if isinstance(found, OSError):
            raise found
        return found

    def _read(self, loop: asyncio.AbstractEventLoop, reading: "asyncio.Future[bytes | OSError]") -> None:
        found: bytes | OSError
        try:
            with self.path.open("rb") as file:
                found = file.read(self._max_bytes + 1)
        except OSError as error:
            found = error
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(reading.set_result, found)
