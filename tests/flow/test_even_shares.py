"""Thousands of clients that leave at every point leave no trace: no count, no connection, no fault, no uneven share.

Their replica is started anew in between, and in the end their gateway is, too.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Connection, Received, ScriptedEngine, never, plain_answer, script
from tests.transcripts import chat, chat_role, chunked, head

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
ABORTS, AT_ONCE, CALLS = 2000, 250, 200
POINTS = ("amid the upload", "before the head", "amid the stream")
STREAM = script(head(), chunked(chat_role()), chunked(chat("a")), never)
SILENCE = script(never)


async def stuck(request: Received, connection: Connection) -> None:
    """Begin a stream and stand still; of a whole answer say nothing."""
    await (STREAM if request.json().get("stream") else SILENCE)(request, connection)


def call(door: Door, *, stream: bool) -> bytes:
    body = json.dumps(ASK | {"stream": stream}).encode()
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {door.token()}\r\n"
    return f"{fields}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def aborted(door: Door, engines: list[ScriptedEngine], aborts: int) -> None:
    """Have so many clients leave, some of them at each point, and wait until nobody notices any more."""
    whole, stream = (call(door, stream=stream) for stream in (False, True))
    sent = {"amid the upload": whole[:-5], "before the head": whole, "amid the stream": stream}
    before = sum(len(engine.requests) for engine in engines)

    async def leave(number: int) -> None:
        point = POINTS[number % 3]
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(sent[point])
        if point == "amid the stream":
            await asyncio.wait_for(reader.readuntil(b'"a"'), DEADLINE_S)
        elif number % 2:  # some leave while their call is on its way to an engine
            await asyncio.sleep(number % 10 / 200)
        writer.transport.abort()

    for start in range(0, aborts, AT_ONCE):
        await asyncio.gather(*[leave(start + number) for number in range(AT_ONCE)])
    samples = await door.idle()
    assert sum(len(engine.requests) for engine in engines) > before + aborts / 3
    assert samples.total("gateway_breaker_open") == 0
    assert samples.total("gateway_upstream_attempts_total", result="reset") == 0
    for engine in engines:
        for request in engine.requests[:]:
            await request.connection.gone(within_s=PROMPTLY_S)


async def spread_evenly(door: Door, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        engine.default = plain_answer
        engine.requests.clear()
    for _ in range(CALLS):
        assert (await door.post(CHAT, ASK)).status == 200
    asked = [len(engine.requests) for engine in engines]
    assert sum(asked) == CALLS
    assert min(asked) >= CALLS / 3  # by chance once in a million runs


async def test_after_aborts_at_every_point_and_a_replicas_return_calls_are_spread_evenly(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    engines = [scripted_engine, await scripted_engines()]
    health = {"interval": "100ms", "unhealthy_after": 2}
    pool = {"replicas": [engine.url for engine in engines], "health": health, "slow_start": "0s"}
    door = await open_door(pools={"main": pool}, server={"drain_timeout": "0s"})
    replica = f"127.0.0.1:{engines[0].port}"

    for engine in engines:
        engine.default = stuck
    await aborted(door, engines, ABORTS // 2)
    await engines[0].close()
    await door.until(lambda samples: samples.total("gateway_replica_up", replica=replica) == 0)
    await engines[0].start(engines[0].port)
    await door.until(lambda samples: samples.total("gateway_replica_up", replica=replica) == 1)
    await aborted(door, engines, ABORTS // 2)
    await spread_evenly(door, engines)

    for engine in engines:
        engine.default = stuck
    under_way = [asyncio.create_task(door.post(CHAT, ASK)) for _ in range(20)]
    async with asyncio.timeout(DEADLINE_S):
        while sum(len(engine.requests) for engine in engines) < CALLS + len(under_way):
            await asyncio.sleep(0.01)
    await door.gateway.stop()
    assert {(reply.status, reply.error["code"]) for reply in await asyncio.gather(*under_way)} == {(503, "draining")}
    for engine in engines:
        for connection in engine.connections:
            await connection.gone(within_s=PROMPTLY_S)
    await spread_evenly(await open_door(pools={"main": pool}), engines)
