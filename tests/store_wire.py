"""A transport to a store whose other end is the test."""

import asyncio
from typing import Any

from gateway.admission.redis.connection import Connection


class Wire(asyncio.Transport):
    """Remembers what was written, and whether it was hung up."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


def wired() -> tuple[Connection, Wire]:
    """Return a connection, and the wire that it writes to."""
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    return connection, wire
