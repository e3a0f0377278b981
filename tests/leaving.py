"""A client that leaves in the ways that clients do."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door

How = Literal["fin", "reset", "half-close"]


class Client:
    """A client that can leave as clients do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, door: Door, body: dict[str, Any], *, withhold: int = 0) -> None:
        """Send a call; the last `withhold` bytes of its body are left out."""
        data = json.dumps(body).encode()
        fields = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.token()}\r\n"
        fields += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(fields.encode() + data[: len(data) - withhold])
        await self._writer.drain()

    async def reads(self, until: bytes) -> bytes:
        """Return what came until these bytes did."""
        return await asyncio.wait_for(self._reader.readuntil(until), DEADLINE_S)

    def leave(self, how: How) -> None:
        if how == "half-close":
            self._writer.write_eof()
            return
        if how == "reset":
            at_once = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._writer.close()


@asynccontextmanager
async def client_of(door: Door) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
