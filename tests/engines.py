"""A scripted engine on a real socket: it records what it is asked and answers with exactly the bytes a test names.

    engine.answer(sse(transcript(" Hello", " world")))           a whole answer
    engine.answer(head(), chunked(chat(" Hello")), gate, reset)  a piece, a pause until `gate` is set, a RST
    engine.answer_with(handler)                                  anything else: async def handler(request, connection)

Scripts are used up in the order given; then `engine.default` answers. GET requests are probes: `engine.probe` answers.
The bytes come from `tests/transcripts.py`.
"""

import asyncio
import json
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.deadlines import DEADLINE_S
from tests.ports import free_port
from tests.transcripts import Kind, answer, http, sse, transcript

# How long a test waits for what must happen: far above what it takes, far below a stuck run.
# How long nothing may go out before a peer counts as having stopped reading.
STALL_S = 0.05
# The engine's kernel must not swallow megabytes that the peer has not read: floods count what was taken.
SEND_BUFFER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came; header names are in lower case, in their order."""

    method: str
    target: str
    head: bytes
    headers: tuple[tuple[str, str], ...]
    body: bytes
    connection: "Connection"

    def header(self, name: str) -> str | None:
        """Return the header's only value."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Received, "Connection"], Awaitable[None]]
Step = bytes | asyncio.Event | Callable[["Connection"], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One connection to the engine. `closed` is set once either side ended it; `closed_at` is when, in loop time."""

    def __init__(self, engine: "ScriptedEngine", number: int) -> None:
        self.id = number
        self.closed = asyncio.Event()
        self.closed_at: float | None = None
        self.busy = False
        self._engine = engine
        self._written = 0
        self._received = bytearray()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def accepted(self) -> int:
        """Bytes that left for the peer: what was sent but for what still waits here."""
        return self._written - self._transport.get_write_buffer_size()

    async def send(self, data: bytes) -> None:
        """Send, and wait until the kernel took it all. Raises `ConnectionResetError` once the connection is gone."""
        self._check_peer()
        self._written += len(data)
        self._transport.write(data)
        await self._writable.wait()
        self._check_peer()

    def send_at_once(self, data: bytes) -> None:
        """Give a little to the kernel without the event loop, which may not run."""
        assert os.write(self._transport.get_extra_info("socket").fileno(), data) == len(data)

    def close(self) -> None:
        """End with a FIN."""
        self._transport.close()

    def reset(self) -> None:
        """End with a RST."""
        if not self._transport.is_closing():
            at_once = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._transport.abort()

    async def gone(self, within_s: float = DEADLINE_S) -> float:
        """Wait until the connection is closed; return when that was, in loop time."""
        async with asyncio.timeout(within_s):
            await self.closed.wait()
        assert self.closed_at is not None
        return self.closed_at

    async def stalled(self, within_s: float = DEADLINE_S) -> None:
        """Wait until the peer takes no more of what is being sent: no byte went out for a while."""
        async with asyncio.timeout(within_s):
            taken = -1
            while self._writable.is_set() or taken != self.accepted:
                taken = self.accepted
                await asyncio.sleep(STALL_S)

    async def next_byte(self) -> None:
        """Wait until the peer sends more, or leaves."""
        while not self._received and not self.closed.is_set():
            self._arrived.clear()
            await self._arrived.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class
        # At 0 uvloop's TLS never tells that it took everything.
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._engine._connected(self, self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._arrived.set()

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the protocol's signature
        self._gone()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _check_peer(self) -> None:
        # A transport that failed is closing before `closed` can be set: a flood must not go on without a pause.
        if self.closed.is_set() or self._transport.is_closing():
            raise ConnectionResetError("the peer left")

    def _gone(self) -> None:
        if self.closed_at is None:
            self.closed_at = asyncio.get_running_loop().time()
        self.closed.set()
        self._arrived.set()
        self._writable.set()

    async def _serve(self) -> None:
        while (request := await self._request()) is not None:
            self.busy = True
            try:
                await self._engine._answer(request)
            except ConnectionResetError:
                return
            except BaseException:
                self.reset()
                raise
            self.busy = False

    async def _request(self) -> Received | None:
        head = await self._until(b"\r\n\r\n")
        if head is None:
            return None
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, target, _ = first.split(" ")
        pairs = [line.split(":", 1) for line in lines]
        headers = tuple((name.lower(), value.strip()) for name, value in pairs)
        body = await self._body(dict(headers))
        return None if body is None else Received(method, target, head, headers, body, self)

    async def _body(self, headers: Mapping[str, str]) -> bytes | None:
        if headers.get("transfer-encoding") != "chunked":
            return await self._exactly(int(headers.get("content-length", "0")))
        body = b""
        while (size := await self._until(b"\r\n")) is not None:
            chunk = await self._exactly(int(size, 16) + 2)
            if chunk is None or chunk == b"\r\n":
                return None if chunk is None else body
            body += chunk[:-2]
        return None

    async def _until(self, end: bytes) -> bytes | None:
        while (found := self._received.find(end)) < 0:
            if not await self._more():
                return None
        return await self._exactly(found + len(end))

    async def _exactly(self, size: int) -> bytes | None:
        while len(self._received) < size:
            if not await self._more():
                return None
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def _more(self) -> bool:
        """Wait for anything to happen; whether the peer is still there."""
        self._arrived.clear()
        if not self.closed.is_set():
            await self._arrived.wait()
        return not self.closed.is_set()


class ScriptedEngine:
    """Listens on a free loopback port and answers each request by the next script."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.probes: list[Received] = []
        self.connections: list[Connection] = []
        self.default: Handler = plain_answer
        self.probe: Handler = script(http(b""))
        self._scripts: deque[Handler] = deque()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1") -> None:
        loop = asyncio.get_running_loop()
        self._closing = False
        self._server = await loop.create_server(
            lambda: Connection(self, len(self.connections)), host=host, port=port or free_port(), ssl=tls
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}"

    async def close(self) -> None:
        """Refuse new connections, cut the open ones, and raise what went wrong in a script."""
        self._server.close()
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for connection in self.connections:
            connection.reset()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self.connections:
            await connection.gone()
        broken = [result for result in results if isinstance(result, Exception)]
        if broken:
            raise ExceptionGroup("scripts of an engine failed", broken)

    def answer(self, *steps: Step) -> None:
        """Answer the next unanswered request with these steps."""
        self._scripts.append(script(*steps))

    def answer_with(self, handler: Handler) -> None:
        """Answer the next unanswered request with `handler`."""
        self._scripts.append(handler)

    async def asked(self, count: int = 1, *, within_s: float = DEADLINE_S) -> Received:
        """Wait until `count` requests came in all; return the last of those."""
        async with asyncio.timeout(within_s):
            while len(self.requests) < count:
                self._news.clear()
                await self._news.wait()
        return self.requests[count - 1]

    def close_idle(self) -> None:
        """Close the connections on which nothing is being answered, as a server's keep-alive timer does."""
        for connection in self.connections:
            if not connection.busy:
                connection.close()

    def _connected(self, connection: Connection, serving: Coroutine[Any, Any, None]) -> None:
        self.connections.append(connection)
        self._tasks.append(asyncio.create_task(serving))
        if self._closing:  # it was being accepted
            connection.reset()

    async def _answer(self, request: Received) -> None:
        if request.method == "GET":
            self.probes.append(request)
            await self.probe(request, request.connection)
            return
        self.requests.append(request)
        self._news.set()
        handler = self._scripts.popleft() if self._scripts else self.default
        await handler(request, request.connection)


def script(*steps: Step) -> Handler:
    """Return a handler that takes these steps: send bytes, wait for an event or for the peer to leave, or call."""

    async def handler(_: Received, connection: Connection) -> None:
        for step in steps:
            if isinstance(step, bytes):
                await connection.send(step)
            elif isinstance(step, asyncio.Event):
                await _either(step, connection.closed)
            else:
                await step(connection)

    return handler


async def close(connection: Connection) -> None:
    """Step: a FIN, whatever the framing promised."""
    connection.close()
    await connection.gone()


async def reset(connection: Connection) -> None:
    """Step: a RST, once the peer could read what came before."""
    await _settle()
    connection.reset()
    await connection.gone()


async def never(connection: Connection) -> None:
    """Step: nothing more, until the peer leaves."""
    await connection.closed.wait()


async def next_byte(connection: Connection) -> None:
    """Step: wait for the first byte of the next request on this connection."""
    await connection.next_byte()


def drip(data: bytes, *, size: int = 1) -> Step:
    """Step: send in segments of `size` bytes, each of which a peer on this event loop can read alone."""

    async def step(connection: Connection) -> None:
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
            await _settle()

    return step


def flood(data: bytes) -> Step:
    """Step: send `data` again and again, as fast as the peer takes it; `connection.accepted` says how much that was."""

    async def step(connection: Connection) -> None:
        while True:
            await connection.send(data)
            await asyncio.sleep(0)  # TLS takes it all without a pause, and tells of its end in the next turn

    return step


async def plain_answer(request: Received, connection: Connection) -> None:
    """Answer any call as a healthy engine would: two words, three prompt tokens, usage where it was asked for."""
    asked = request.json()
    kind: Kind = "chat" if request.target.endswith("/chat/completions") else "completions"
    if not asked.get("stream"):
        await connection.send(http(answer(kind, "Hello world", usage=(3, 2))))
        return
    include_usage = (asked.get("stream_options") or {}).get("include_usage")
    await connection.send(sse(transcript(" Hello", " world", kind=kind, usage=(3, 2) if include_usage else None)))


@pytest.fixture
async def scripted_engines() -> AsyncIterator[Callable[[], Awaitable[ScriptedEngine]]]:
    """Give a function that starts one engine more."""
    started: list[ScriptedEngine] = []

    async def start() -> ScriptedEngine:
        engine = ScriptedEngine()
        await engine.start()
        started.append(engine)
        return engine

    yield start
    for engine in started:
        await engine.close()


@pytest.fixture
async def scripted_engine(scripted_engines: Callable[[], Awaitable[ScriptedEngine]]) -> ScriptedEngine:
    """Give one engine, listening."""
    return await scripted_engines()


async def _either(event: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(each.wait()) for each in (event, other)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _settle() -> None:
    """Let a peer on this event loop read what was sent: a turn to see that it is there, a turn to read it."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
