"""A defect of ours: a 500 that tells nothing, a cut where an answer is under way, or a task that begins anew."""

import asyncio
import logging
from typing import Any

import pytest

from gateway.client.answer import Answer
from gateway.client.request import Request
from gateway.relay.keep_alive import COMMENT
from gateway.trail import Trail
from tests.deadlines import DEADLINE_S
from tests.doors import OpenDoor, listening
from tests.engines import ScriptedEngine
from tests.envelope import SERVER_ERROR, error_of
from tests.raw_client import raw_client
from tests.transcripts import sse, transcript

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_a_defect_is_a_500_without_details(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def defective(_request: Request, _answer: Answer, _trail: Trail) -> None:
        raise RuntimeError("canary")

    door = await open_door(scripted_engine.url)
    async with listening(door, defective) as port, raw_client(port) as client:
        first, second = await client.ask(GET), await client.ask(GET)
    for reply in (first, second):
        message = error_of(reply, 500, "internal_error", SERVER_ERROR)
        assert "canary" not in message
        (record,) = [record for record in caplog.records if named(record) == reply.headers["INFERENCE-ID"]]
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == "canary"
    assert (await door.metrics()).total("gateway_requests_total", status="500", outcome="refused") == 2


async def test_a_defect_in_the_middle_of_an_answer_cuts_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def defective(_request: Request, answer: Answer, _trail: Trail) -> None:
        answer.begin(200, "")
        answer.send(b"data: {}\n\n")
        await asyncio.sleep(0)
        raise RuntimeError("canary")

    door = await open_door(scripted_engine.url)
    async with listening(door, defective) as port, raw_client(port) as client:
        await client.send(GET + GET)
        received = await client.rest()
    assert received.count(b"HTTP/1.1") == 1
    assert not received.endswith(b"0\r\n\r\n")
    assert "canary" in caplog.text
    assert (await door.metrics()).total("gateway_requests_total", status="200", outcome="broken") == 1


async def test_a_defect_behind_comments_and_an_answer_cuts_it_too(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    commented = asyncio.Event()
    scripted_engine.answer(commented, sse(transcript(" a", kind="completions")))
    door = await open_door(scripted_engine.url, pools={"main": {"keep_alive_comments": "100ms"}})

    async def defective(request: Request, answer: Answer, trail: Trail) -> None:
        await door.gateway._pipeline.infer(request, answer, trail)
        raise RuntimeError("canary")

    body = b'{"model": "tiny", "prompt": "Hi", "stream": true}'
    fields = f"Authorization: Bearer {door.token()}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    async with listening(door, defective) as port, raw_client(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n%b" % (fields.encode(), body))
        received = await client.until(COMMENT)
        commented.set()
        received += await client.rest()
    assert b'" a"' in received
    assert b"internal_error" not in received
    assert "canary" in caplog.text


async def test_a_defect_in_a_background_task_is_told_and_the_task_begins_anew(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    door = await open_door(scripted_engine.url, pools={"main": {"health": {"interval": "50ms"}}})
    pool = door.gateway._pools["main"]
    health = pool.health

    class Once:
        """What a defect may leave: whoever looks at it fails, and nobody after that."""

        def __getattr__(self, name: str) -> Any:
            pool.health = health
            raise AttributeError(name)

    pool.health = Once()  # type: ignore[assignment]
    samples = await door.until(lambda s: s.total("gateway_background_failures_total") == 1)
    assert samples.total("gateway_replica_up") == 1
    probed = len(scripted_engine.probes)
    async with asyncio.timeout(DEADLINE_S):
        while len(scripted_engine.probes) < probed + 3:
            await asyncio.sleep(0.01)
    (told,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    name = scripted_engine.url.removeprefix("http://")
    assert told.getMessage() == f"a background task failed, and begins anew in 0.5 s: health of {name}"
    assert told.exc_info is not None
    assert (await door.metrics()).total("gateway_background_failures_total") == 1


def named(record: logging.LogRecord) -> str | None:
    """Return the inference id of a record, as its log line shows it."""
    inference_id: str | None = getattr(record, "inference_id", None)
    return inference_id
