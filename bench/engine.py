"""A fast fake engine: the simulated engine's answers, prepared once for each body and sent without further thought.

It runs on another core than the proxies and must never be what a measurement waits for.
"""

import asyncio
import functools
import json
import sys
from dataclasses import dataclass

import httptools
import uvloop

from gateway.engine import wire
from gateway.engine.generation import Generation
from gateway.engine.job import parse

MODEL = "bench/model"
# The one field of a body that is not OpenAI's: milliseconds between two events. Without it they come one a loop turn.
PAUSE_FIELD = "bench_pause_ms"

_CREATED = 1_764_400_000
_MAX_MODEL_LEN = 131_072
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Prepared:
    """The answer to one body: its head, and its events, or its only part where it is not a stream."""

    head: bytes
    parts: tuple[bytes, ...]
    streamed: bool
    pause_s: float


@functools.lru_cache(maxsize=64)
def prepare(body: bytes) -> Prepared:
    """Return the answer to a chat body, as vLLM words it."""
    job = parse(body, endpoint="chat", model=MODEL, max_model_len=_MAX_MODEL_LEN)
    answer, generation = wire.Answer(job, "0123456789abcdef", _CREATED, MODEL), Generation(job)
    pause_s = json.loads(body).get(PAUSE_FIELD, 0) / 1000
    if job.stream:
        parts = answer.openings(generation)
        while generation.running:
            parts += [answer.token(choice, text) for choice, text in generation.step()]
        parts += answer.endings(generation)
        head = _head("text/event-stream; charset=utf-8", "transfer-encoding: chunked")
        return Prepared(head, tuple(parts), streamed=True, pause_s=pause_s)
    text = ""
    while generation.running:
        text += "".join(token for _, token in generation.step())
    whole = answer.whole(generation, [text])
    head = _head("application/json", f"content-length: {len(whole)}")
    return Prepared(head, (whole,), streamed=False, pause_s=pause_s)


def _head(content_type: str, framing: str) -> bytes:
    date = "date: Sun, 29 Nov 2026 00:00:00 GMT"
    return f"HTTP/1.1 200 OK\r\n{date}\r\nserver: uvicorn\r\n{framing}\r\ncontent-type: {content_type}\r\n\r\n".encode()


@functools.lru_cache(maxsize=64)
def _writes(body: bytes) -> tuple[bytes, ...]:
    """Return what goes to the socket, one write each."""
    prepared = prepare(body)
    if not prepared.streamed:
        return (prepared.head + prepared.parts[0],)
    first, *others = [b"%x\r\n%b\r\n" % (len(event), event) for event in prepared.parts]
    return (prepared.head + first, *others[:-1], others[-1] + b"0\r\n\r\n")


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self._body: list[bytes] = []
        self._timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's is one by behaviour, not by class

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the protocol's signature
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        if not body:  # a health check
            self._write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        writes = _writes(body)
        self._write(writes[0])
        if len(writes) > 1:
            self._schedule(writes, 1, pause_s=prepare(body).pause_s, began=self._loop.time())

    def _schedule(self, writes: tuple[bytes, ...], index: int, *, pause_s: float, began: float) -> None:
        step = functools.partial(self._step, writes, index, pause_s=pause_s, began=began)
        self._timer = self._loop.call_at(began + index * pause_s, step) if pause_s else self._loop.call_soon(step)

    def _step(self, writes: tuple[bytes, ...], index: int, *, pause_s: float, began: float) -> None:
        self._write(writes[index])
        if index + 1 < len(writes):
            self._schedule(writes, index + 1, pause_s=pause_s, began=began)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


async def listen(port: int) -> asyncio.Server:
    """Listen on a port of this machine, 0 for a free one."""
    return await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=_BACKLOG)


async def _serve(port: int) -> None:
    async with await listen(port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
