"""Bytes that wait for a client in, for how long it has taken none of them out.

A transport's own buffer says too little: the kernel holds megabytes behind it, and takes more only once it is rid of a
third of them. A client that reads slowly would look like one that reads nothing.
"""

import asyncio
import fcntl
import struct
import termios


class Stall:
    """One client that has bytes to take, and gets no more meanwhile. Times are in seconds."""

    __slots__ = ("_since", "_waiting")

    def __init__(self, waiting: int, now: float) -> None:
        self._waiting = waiting
        self._since = now

    def lasted(self, waiting: int, now: float) -> float:
        """Return since when the client has taken nothing, as so many bytes wait for it now."""
        if waiting < self._waiting:
            self._since = now
        self._waiting = waiting
        return now - self._since


def waiting_for(transport: asyncio.Transport) -> int:
    """Return how many bytes the client has not acknowledged or, but on Linux, how many the kernel has not taken."""
    try:
        queue = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    except OSError:
        return transport.get_write_buffer_size()
    return transport.get_write_buffer_size() + int(struct.unpack("i", queue)[0])
