"""A port before a store server that speaks TLS to whoever begins with it, and to others as the server does.

So a server that has no TLS has it in the eyes of a client, and is what it was for sentinels and servers.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.store_proxy import copy, proxy_before

_HANDSHAKE = b"\x16"  # the first byte of TLS (RFC 8446 section 5.1), and of no command


class EitherWay:
    """`encrypted` counts the connections that spoke TLS, `plain` the others."""

    def __init__(self, *, plain: int, tls: int) -> None:
        self.port = 0
        self.encrypted = self.plain = 0
        self._plain, self._tls = plain, tls
        self._copies: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        first = await reader.read(65_536)
        encrypted = first.startswith(_HANDSHAKE)
        self.encrypted += encrypted
        self.plain += not encrypted
        server_reader, server_writer = await asyncio.open_connection(
            "127.0.0.1", self._tls if encrypted else self._plain
        )
        self._writers.append(server_writer)
        server_writer.write(first)
        for work in (copy(reader, server_writer), copy(server_reader, writer)):
            task = asyncio.create_task(work)
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)

    async def stop(self) -> None:
        for task in self._copies:
            task.cancel()
        if self._copies:
            await asyncio.wait(self._copies)
        for writer in self._writers:  # a copy that had not begun yet has closed none
            writer.close()


@asynccontextmanager
async def either_way_before(port: int, tls: ssl.SSLContext) -> AsyncIterator[EitherWay]:
    async with proxy_before(port, tls) as encrypted:
        door = EitherWay(plain=port, tls=encrypted.port)
        server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
        door.port = server.sockets[0].getsockname()[1]
        try:
            yield door
        finally:
            server.close()
            await door.stop()
