"""A client on a raw socket: it sends exactly the bytes a test names, and reads answers as HTTP/1.1 says they end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from multidict import CIMultiDict

from tests.deadlines import DEADLINE_S
from tests.doors import Reply


class RawClient:
    """One connection; `raw_client` opens it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send, and wait until the kernel took it."""
        self._writer.write(data)
        await self._writer.drain()

    def finish(self) -> None:
        """Close the writing half."""
        self._writer.write_eof()

    def leave(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Reply:
        await self.send(data)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False, within_s: float = DEADLINE_S) -> Reply:
        """Read the next answer, interim ones included; `bodiless`: it answers HEAD, or is an interim one."""
        async with asyncio.timeout(within_s):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n")
            line, *fields = head.split("\r\n")
            assert line.startswith("HTTP/1.1 ")
            pairs = [field.partition(": ") for field in fields]
            headers = CIMultiDict((name, value) for name, _, value in pairs)
            body = b"" if bodiless else await self._body(headers)
            return Reply(int(line.split(" ")[1]), headers, body)

    async def until(self, mark: bytes) -> bytes:
        """Read up to and including what is looked for."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Wait until the gateway closes the connection, and return what came before."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read()

    async def _body(self, headers: CIMultiDict[str]) -> bytes:
        if "Content-Length" in headers:
            assert "Transfer-Encoding" not in headers
            return await self._reader.readexactly(int(headers["Content-Length"]))
        if headers.get("Transfer-Encoding") != "chunked":
            return await self._reader.read()
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        assert await self._reader.readexactly(2) == b"\r\n"
        return body


@asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    """Connect to a gateway on loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()
