"""Engines' errors whose bodies do not end: what their status says is enough, and nothing waits for the rest."""

import asyncio
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, OpenDoor
from tests.engines import ScriptedEngine, flood, never
from tests.envelope import BAD_REQUEST, error_of
from tests.transcripts import chunked, head

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def error_head(status: int, length: int = 10**6) -> bytes:
    return head(f"{status} X", content_type="application/json", framing="length", length=length)


@pytest.mark.parametrize("status", [302, 401, 404, 424, 429, 500, 503])
@pytest.mark.parametrize("body", [b"", b'{"error":'], ids=["none of it", "a part of it"])
@STREAM
async def test_a_failed_attempt_is_one_as_soon_as_its_status_says_so(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: Any,
    status: int,
    body: bytes,
    *,
    stream: bool,
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(error_head(status), body, never)
    replicas = [{"url": scripted_engine.url, "weight": 1000}, {"url": second.url}]
    door = await open_door(pools={"main": {"replicas": replicas}})
    reply = await asyncio.wait_for(door.post(CHAT, ASK | {"stream": stream}), PROMPTLY_S)
    assert (reply.status, len(second.requests)) == (200, 1)
    await scripted_engine.requests[0].connection.gone(within_s=PROMPTLY_S)


@STREAM
async def test_a_refusal_without_end_is_read_only_so_far(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    steps = head("400 X", content_type="application/json"), flood(chunked(b"x" * 10_000))
    scripted_engine.answer(*steps)
    door = await open_door(scripted_engine.url)
    reply = await asyncio.wait_for(door.post(CHAT, ASK | {"stream": stream}), 5 * PROMPTLY_S)
    assert "refused this call" in error_of(reply, 400, "invalid_value", BAD_REQUEST)
    connection = scripted_engine.requests[0].connection
    await connection.gone(within_s=PROMPTLY_S)
    assert connection.accepted < 8 * 2**20


async def test_an_error_that_came_whole_leaves_its_connection_for_the_next_call(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    for _ in range(10):
        scripted_engine.answer(error_head(500, 2) + b"{}")
        assert (await door.post(CHAT, ASK)).status == 502
    assert len({request.connection.id for request in scripted_engine.requests}) == 1


async def test_after_many_errors_that_nobody_read_no_connection_is_left(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    for _ in range(200):
        scripted_engine.answer(error_head(500), never)
    replies = await asyncio.gather(*[door.post(CHAT, ASK) for _ in range(200)])
    assert {reply.status for reply in replies} == {502}
    await asyncio.gather(*[request.connection.gone(within_s=PROMPTLY_S) for request in scripted_engine.requests])
    good = await asyncio.gather(*[door.post(CHAT, ASK) for _ in range(20)])
    assert {reply.status for reply in good} == {200}
    assert sum(not connection.closed.is_set() for connection in scripted_engine.connections) <= 21  # and a probe's
