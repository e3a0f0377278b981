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

from bench import wording
from bench.metronome import Metronome, Playing
from bench.stamped import NUMBER_FIELD
from gateway.engine.generation import Generation

# The one field of a body that is not OpenAI's: milliseconds between two events. Without it they come one a loop turn.
PAUSE_FIELD = "bench_pause_ms"

_BACKLOG = 1024
_STAMPED = f'"{NUMBER_FIELD}"'.encode()


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
    job = wording.job(body)
    answer, generation = wording.answer(job), Generation(job)
    pause_s = json.loads(body).get(PAUSE_FIELD, 0) / 1000
    if job.stream:
        parts = answer.openings(generation)
        while generation.running:
            parts += [answer.token(choice, text) for choice, text in generation.step()]
        parts += answer.endings(generation)
        return Prepared(wording.STREAM_HEAD, tuple(parts), streamed=True, pause_s=pause_s)
    text = ""
    while generation.running:
        text += "".join(token for _, token in generation.step())
    whole = answer.whole(generation, [text])
    head = wording.head("application/json", f"content-length: {len(whole)}")
    return Prepared(head, (whole,), streamed=False, pause_s=pause_s)


@functools.lru_cache(maxsize=64)
def _writes(body: bytes) -> tuple[bytes, ...]:
    """Return what goes to the socket, one write each."""
    prepared = prepare(body)
    if not prepared.streamed:
        return (prepared.head + prepared.parts[0],)
    first, *others = map(wording.chunk, prepared.parts)
    return (prepared.head + first, *others[:-1], others[-1] + wording.LAST_CHUNK)


class _Connection(asyncio.Protocol):
    def __init__(self, metronome: Metronome) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self._body: list[bytes] = []
        self._timer: asyncio.Handle | None = None
        self._metronome = metronome
        self._playing: Playing | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's is one by behaviour, not by class

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the protocol's signature
        if self._timer is not None:
            self._timer.cancel()
        if self._playing is not None:
            self._metronome.leave(self._playing)

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
        if _STAMPED in body:
            self._playing = Playing.asked(body, self._write)
            self._metronome.join(self._playing)
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
    connection = functools.partial(_Connection, Metronome())
    return await asyncio.get_running_loop().create_server(connection, "127.0.0.1", port, backlog=_BACKLOG)


async def _serve(port: int) -> None:
    async with await listen(port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
