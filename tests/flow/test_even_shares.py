"""Clients that leave calls everywhere leave no trace in the choice of replicas: each gets its share afterwards."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Connection, Received, ScriptedEngine, never, script
from tests.transcripts import chat, chat_role, chunked, head, http

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
ABORTS, CALLS = 300, 100
SICK = script(http(b"", status="503 Service Unavailable"))


STREAM = script(head(), chunked(chat_role()), chunked(chat("a")), never)
SILENCE = script(never)


async def stuck(request: Received, connection: Connection) -> None:
    """Begin a stream and stand still; of a whole answer say nothing."""
    await (STREAM if request.json().get("stream") else SILENCE)(request, connection)


async def half_a_call(door: Door) -> None:
    """Send the head of a call and half of its body, and leave."""
    _, writer = await asyncio.open_connection("127.0.0.1", door.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {door.token()}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
    await writer.drain()
    writer.transport.abort()


async def test_after_aborts_at_every_point_and_a_replicas_return_calls_are_spread_evenly(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    engines = [scripted_engine, await scripted_engines()]
    health = {"interval": "100ms", "unhealthy_after": 2}
    pool = {"replicas": [engine.url for engine in engines], "health": health, "slow_start": "0s"}
    door = await open_door(pools={"main": pool})
    replica = f"127.0.0.1:{engines[0].port}"

    async def leave(number: int) -> None:
        """Leave amid the upload, before the head, or amid the stream."""
        if number % 3 == 0:
            await half_a_call(door)
            return
        calling = asyncio.create_task(door.post(CHAT, ASK | {"stream": number % 3 == 1}))
        await asyncio.sleep(number % 10 / 500)
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling

    for engine in engines:
        engine.default = stuck
    await asyncio.gather(*[leave(number) for number in range(ABORTS // 2)])
    engines[0].probe = SICK
    await door.until(lambda samples: samples.total("gateway_replica_up", replica=replica) == 0)
    engines[0].probe = script(http(b""))
    await door.until(lambda samples: samples.total("gateway_replica_up", replica=replica) == 1)
    await asyncio.gather(*[leave(number) for number in range(ABORTS // 2)])

    await door.idle()
    for engine in engines:
        engine.default = script(http(b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'))
        engine.requests.clear()
    for _ in range(CALLS):
        assert (await door.post(CHAT, ASK)).status == 200
    assert min(len(engine.requests) for engine in engines) >= CALLS / 4
