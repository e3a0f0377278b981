"""A TCP proxy before a store server that loses replies, holds them back, or hangs up. One event loop with its user."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from tests.ports import free_port

Loss = Literal["swallow", "hang up"]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, until one of them hangs up."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # either end hung up, as it may
    finally:
        writer.close()


class StoreProxy:
    """Forwards all commands; of replies, loses as many chunks as `lose` says, and delays the others by `delay_s`."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.connections = 0
        self.lost = asyncio.Event()
        self._server_port = port
        self._losses: list[Loss] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lose(self, how: Loss) -> None:
        """Lose the next chunk of replies; its commands have been forwarded, and answered."""
        self.lost.clear()
        self._losses.append(how)

    def lose_nothing(self) -> None:
        """Lose no more."""
        self._losses.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        for task in (copy(reader, server_writer), self._answer(server_reader, writer)):
            running = asyncio.get_running_loop().create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if self._losses:
                    how = self._losses.pop(0)
                    self.lost.set()
                    if how == "hang up":
                        return
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # as above
        finally:
            writer.close()


@asynccontextmanager
async def proxy_before(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[StoreProxy]:
    proxy = StoreProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", free_port(), ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
