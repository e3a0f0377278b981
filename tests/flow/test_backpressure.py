"""Clients that do not keep up: the engine waits, and what the gateway holds of a stream is bounded."""

import asyncio
import json
import socket
import struct

import pytest

from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Connection, Received, ScriptedEngine, flood, never
from tests.transcripts import LAST_CHUNK, chat, chunked, head, transcript, usage_of

pytestmark = pytest.mark.loops("uvloop", "asyncio")

STREAM = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
EVENT = chunked(chat("x" * 1000))
# What a stream may have under way: the kernel's socket buffers on both sides, one read, and asyncio's 64 KiB mark.
BOUND_BYTES = 8 * 2**20
# What was seen of it: 0.9 MB. If the kernel took all that it likes for a client with a small window, 3.8 MB.
KERNELS_BYTES = 3 * 2**20
# How long an engine may be silent, which one that is read without a pause never is; and more than that.
IDLE_S, LONGER_S = 1.6, 2.0


async def small_window(door: Door) -> socket.socket:
    """Connect with a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", door.port))
    return client


async def slow_client(door: Door) -> socket.socket:
    """Connect with a small receive buffer, ask, and read nothing."""
    client = await small_window(door)
    loop = asyncio.get_running_loop()
    body = json.dumps(STREAM).encode()
    lines = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.token()}\r\n"
    lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(client, lines.encode() + body)
    return client


async def stalled(engine: Connection) -> int:
    """Wait until the engine's peer takes nothing more; return how many bytes it took."""
    taken = -1
    async with asyncio.timeout(DEADLINE_S):
        while taken != engine.accepted:
            taken = engine.accepted
            await asyncio.sleep(0.1)
    return taken


async def test_a_client_that_reads_nothing_stops_its_engine(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), flood(EVENT))
    door = await open_door(scripted_engine.url)
    client = await slow_client(door)
    engine = (await scripted_engine.asked()).connection
    taken = await stalled(engine)
    assert taken < BOUND_BYTES
    assert (await door.post(CHAT, STREAM)).status == 200  # nobody else is held up
    loop = asyncio.get_running_loop()
    received = 0
    while received < taken + BOUND_BYTES:  # the client reads on, and so does the engine's connection
        received += len(await loop.sock_recv(client, 2**16))
    client.close()
    await engine.gone(within_s=PROMPTLY_S)
    await door.idle()


async def test_a_slow_client_is_not_the_engines_stall(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.answer(head(), flood(EVENT))
    door = await open_door(scripted_engine.url, pools={"main": {"timeouts": {"idle": f"{IDLE_S}s"}}})
    client = await slow_client(door)
    engine = (await scripted_engine.asked()).connection
    await stalled(engine)
    await asyncio.sleep(LONGER_S)
    assert not engine.closed.is_set()
    client.close()
    await engine.gone(within_s=PROMPTLY_S)
    assert (await door.idle()).total("gateway_requests_total", outcome="client_gone") == 1


async def test_answers_to_pipelined_requests_wait_until_the_client_reads(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    loop = asyncio.get_running_loop()
    requests, document = 2000, (await door.get("/openapi.json")).body
    client = await small_window(door)
    try:
        await loop.sock_sendall(client, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
        before = answered = 0.0
        async with asyncio.timeout(DEADLINE_S):
            while answered < 2 or answered > before:  # the document that was read above is one
                before, answered = answered, (await door.metrics()).total("gateway_requests_total", endpoint="other")
                await asyncio.sleep(0.1)
        assert answered * len(document) < BOUND_BYTES
        received = 0
        async with asyncio.timeout(DEADLINE_S):
            while received < requests * len(document):  # it reads on, and nothing is lost
                received += len(await loop.sock_recv(client, 2**16))
    finally:
        client.close()


def numbered() -> list[bytes]:
    """Return the events of a stream that no socket buffers hold."""
    return transcript(*[f"{number} {'x' * 1000}" for number in range(BOUND_BYTES // 500)])


async def read(client: socket.socket, mark: bytes, *, times: int = 1) -> bytes:
    """Read until these bytes came so often, in one piece."""
    received, found = bytearray(), 0
    async with asyncio.timeout(DEADLINE_S):
        while found < times:
            piece = await asyncio.get_running_loop().sock_recv(client, 2**16)
            assert piece, "it ended"
            found += (bytes(received[1 - len(mark) :]) + piece).count(mark)
            received += piece
    return bytes(received)


def unframed(data: bytes) -> bytes:
    """Return the body of an answer in chunks."""
    framed, pieces, at = data.partition(b"\r\n\r\n")[2], [], 0
    while size := int(framed[at : framed.index(b"\r\n", at)], 16):
        at = framed.index(b"\r\n", at) + 2
        pieces.append(framed[at : at + size])
        at += size + 2
    return b"".join(pieces)


async def test_a_client_that_closes_its_window_for_long_and_reads_on_has_every_byte(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = numbered()
    scripted_engine.answer(head(), *map(chunked, events), LAST_CHUNK)
    door = await open_door(scripted_engine.url, pools={"main": {"timeouts": {"idle": f"{IDLE_S}s"}}})
    client = await slow_client(door)
    received = await read(client, b"data: ", times=100)
    engine = (await scripted_engine.asked()).connection
    await engine.stalled()
    await asyncio.sleep(LONGER_S)
    received += await read(client, LAST_CHUNK)
    client.close()
    assert unframed(received) == b"".join(events)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="ok", status="200") == 1
    assert samples.total("gateway_tokens_total", kind="completion") == len(events) - 2  # but its role and `[DONE]`


async def test_a_client_that_closes_its_window_and_resets_later_is_charged_what_its_engine_had_for_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), flood(EVENT))
    door = await open_door(scripted_engine.url)
    client = await slow_client(door)
    received = await read(client, b"data: ", times=100)
    engine = (await scripted_engine.asked()).connection
    await engine.stalled()
    taken = engine.accepted
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    await engine.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="client_gone", status="200") == 1
    charged = samples.total("gateway_tokens_total", kind="completion", source="estimated")
    assert len(received) < taken < KERNELS_BYTES
    assert taken < charged * len(EVENT) <= engine.accepted  # what waited here was read at last


async def test_what_an_engine_generated_while_it_was_held_up_is_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    """vLLM generates on, and makes one event of all that waits: its running total is all that anybody hears of it."""
    prompt, generated, held_up = 3, 5000, asyncio.Event()

    async def merging(_: Received, connection: Connection) -> None:
        await connection.send(head())
        told = 0
        while not held_up.is_set():
            told += 1
            await connection.send(chunked(chat("x" * 1000, usage=usage_of((prompt, told)))))
        await connection.send(chunked(chat("x" * 1000, usage=usage_of((prompt, generated)))))
        await never(connection)

    scripted_engine.answer_with(merging)
    door = await open_door(scripted_engine.url)
    client = await slow_client(door)
    engine = (await scripted_engine.asked()).connection
    await engine.stalled()
    held_up.set()
    client.close()
    await engine.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == generated
    assert samples.total("gateway_requests_total", outcome="client_gone", status="200") == 1
