"""Comments to a client whose engine thinks: at event boundaries only, no end to any time limit, and no lost retry."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.relay.keep_alive import COMMENT
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, Step, never, reset
from tests.event_source import data_of, error_at_end
from tests.raw_client import raw_client
from tests.transcripts import DONE, LAST_CHUNK, answer, chat, chat_role, chunked, dumps, head, http, transcript

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = ASK | {"stream": True}
EVENTS = transcript(" Hello", " world")
DEADLINE_MS = 60_000
RULES = [
    {"name": "requests", "per": ["key"], "requests": 1000, "window": "1h"},
    {"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "1h"},
]
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]


class Listener:
    """A client that lets engines think until it has heard enough comments."""

    def __init__(self) -> None:
        self._heard = bytearray()
        self._news = asyncio.Event()

    async def post(self, door: Door, body: dict[str, Any] = STREAM) -> Reply:
        """Send a call and read its whole answer."""
        headers = authorized(door) | {"x-request-timeout-ms": str(DEADLINE_MS)}
        async with (
            asyncio.timeout(DEADLINE_S),
            door.session.post(door.url + CHAT, json=body, headers=headers) as response,
        ):
            async for piece in response.content.iter_any():
                self._heard += piece
                self._news.set()
            return Reply(response.status, response.headers, bytes(self._heard))

    def hears(self, comments: int) -> Step:
        """Step: think until so many more came."""

        async def step(_: object) -> None:
            enough = self._heard.count(COMMENT) + comments
            while self._heard.count(COMMENT) < enough:
                self._news.clear()
                await self._news.wait()

        return step


@pytest.fixture
def client() -> Listener:
    return Listener()


def authorized(door: Door) -> dict[str, str]:
    return {"Authorization": f"Bearer {door.token()}"}


def pause(seconds: float) -> Step:
    """Step: think for so long."""

    async def step(_: object) -> None:
        await asyncio.sleep(seconds)

    return step


async def door_with(open_door: OpenDoor, *engines: ScriptedEngine, **pool: Any) -> Door:
    """Open a gateway that sends comments ten times a second, as often as it may."""
    replicas = [{"url": engine.url, "weight": 10.0**-number} for number, engine in enumerate(engines)]
    entry = {"replicas": replicas, "keep_alive_comments": "100ms"} | pool
    return await open_door(pools={"main": entry}, limits={"plans": {"standard": RULES}})


async def post(door: Door, body: dict[str, Any] = STREAM, *, deadline_ms: int = DEADLINE_MS) -> Reply:
    async with asyncio.timeout(DEADLINE_S):
        return await door.post(CHAT, body, **{"x-request-timeout-ms": str(deadline_ms)})


def comments_before(rest: bytes, reply: Reply) -> int:
    """Return how many comments came, and nothing else, before `rest`."""
    assert reply.status == 200
    assert reply.body.endswith(rest)
    comments = reply.body.removesuffix(rest)
    assert comments == COMMENT * (len(comments) // len(COMMENT))
    return len(comments) // len(COMMENT)


async def left(door: Door) -> tuple[int, int]:
    """Return how many calls and output tokens the key was charged before this."""
    await door.idle()
    headers = (await door.post(CHAT, ASK)).headers
    calls, tokens = [int(headers[f"x-ratelimit-remaining-{measure}"]) for measure in ("requests", "tokens")]
    return 1000 - calls - 1, 1000 - tokens - ASK["max_tokens"]


async def test_they_come_while_the_engine_thinks_and_all_else_is_as_without_them(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, client: Listener
) -> None:
    scripted_engine.answer(client.hears(3), head(), *map(chunked, EVENTS), LAST_CHUNK)
    door = await door_with(open_door, scripted_engine, keep_alive_comments="250ms")
    loop = asyncio.get_running_loop()
    began = loop.time()
    reply = await client.post(door)
    assert 3 <= comments_before(b"".join(EVENTS), reply) <= (loop.time() - began) / 0.25
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"
    assert reply.headers["x-ratelimit-limit-tokens"] == "1000"
    assert reply.headers["INFERENCE-ID"] == scripted_engine.requests[0].header("x-request-id")


async def test_the_first_one_goes_out_before_the_engine_has_said_anything(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    heard = asyncio.Event()
    scripted_engine.answer(heard, head(), *map(chunked, EVENTS), LAST_CHUNK)
    door = await door_with(open_door, scripted_engine)
    async with door.session.post(door.url + CHAT, json=STREAM, headers=authorized(door)) as response:
        assert response.status == 200
        assert await response.content.readexactly(len(COMMENT)) == COMMENT
        heard.set()
        assert (await response.content.read()).endswith(b"".join(EVENTS))


async def test_they_come_between_events_and_never_within_one(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, client: Listener
) -> None:
    first, second, *others = EVENTS
    begun = [client.hears(1), chunked(first), client.hears(1), chunked(second[:40]), pause(0.35), chunked(second[40:])]
    steps = [step for event in others for step in (client.hears(1), chunked(event))]
    scripted_engine.answer(head(), *begun, *steps, LAST_CHUNK)
    ask = STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    reply = await client.post(await door_with(open_door, scripted_engine), ask)
    assert reply.body.replace(COMMENT, b"") == b"".join(EVENTS)
    assert data_of(reply.body) == data_of(b"".join(EVENTS))
    assert first + COMMENT in reply.body
    assert second in reply.body  # it took longer than a comment waits
    assert reply.body.endswith(DONE)


async def test_none_come_where_nobody_asked_for_them(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    steps = [step for event in EVENTS for step in (pause(0.3), chunked(event))]
    scripted_engine.answer(head(), *steps, LAST_CHUNK)
    assert (await post(await open_door(scripted_engine.url))).body == b"".join(EVENTS)


async def test_a_whole_answer_gets_none(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    body = answer("chat", "Hello", usage=(3, 1))
    scripted_engine.answer(pause(0.5), http(body))
    assert (await post(await door_with(open_door, scripted_engine), ASK)).body == body


@pytest.mark.parametrize(("begun", "last"), [((), never), ((), reset), ((head(),), reset)])
async def test_another_replica_still_answers_where_only_comments_were_sent(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    client: Listener,
    begun: tuple[Step, ...],
    last: Step,
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(*begun, client.hears(2), last)
    second.answer(client.hears(1), head(), *map(chunked, EVENTS), LAST_CHUNK)
    # The second is to answer in that time, however busy the machine is.
    limits = {"first_byte": "2s"} if last is never else {}
    door = await door_with(open_door, scripted_engine, second, timeouts=limits)
    assert comments_before(b"".join(EVENTS), await client.post(door)) >= 3
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total") == 2
    assert samples.total("gateway_requests_total", outcome="ok", status="200") == 1
    assert await left(door) == (1, 2)


async def test_where_no_replica_answers_the_refusal_is_an_event(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(never)
    second.answer(never)
    door = await door_with(open_door, scripted_engine, second, timeouts={"first_byte": "700ms"})
    reply = await post(door)
    assert error_at_end(reply.body)["code"] == "upstream_timeout"
    assert comments_before(b"data: " + data_of(reply.body)[0].encode() + b"\n\n", reply) >= 4
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="first_byte_timeout") == 2
    assert samples.total("gateway_requests_total", outcome="upstream_failed", status="200") == 1
    assert samples.total("gateway_answers_broken_total") == 0
    assert json.loads((await door.logged(1))[-1])["error_code"] == "upstream_timeout"
    assert await left(door) == (0, 0)


async def test_an_engines_refusal_is_an_event_and_is_charged_as_one(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, client: Listener
) -> None:
    refusal = dumps({"error": {"message": "too odd", "type": "BadRequestError", "param": "temperature", "code": 400}})
    scripted_engine.answer(client.hears(1), http(refusal, status="400 Bad Request"))
    door = await door_with(open_door, scripted_engine)
    error = error_at_end((await client.post(door)).body)
    assert (error["code"], error["message"], error["param"]) == ("invalid_value", "too odd", "temperature")
    assert (await door.idle()).total("gateway_requests_total", outcome="refused", status="200") == 1
    assert await left(door) == (1, 0)


async def test_a_connection_carries_on_behind_a_refusal_in_a_stream(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    heard = asyncio.Event()
    scripted_engine.answer(heard, reset)
    door = await door_with(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        await client.send(call_of(door))
        await client.until(COMMENT)
        heard.set()
        rest = await client.until(LAST_CHUNK)
        second = await client.ask(call_of(door))
    assert error_at_end(rest[rest.index(b"data: ") :].removesuffix(b"\r\n" + LAST_CHUNK))["code"] == "upstream_error"
    assert second.body.endswith(DONE)


def call_of(door: Door) -> bytes:
    body = json.dumps(STREAM).encode()
    lines = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {door.token()}\r\n"
    lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return lines.encode() + body


async def test_a_stream_that_breaks_after_comments_and_events_ends_visibly(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, client: Listener
) -> None:
    scripted_engine.answer(client.hears(1), head(), chunked(chat_role() + chat(" a")), client.hears(1), reset)
    door = await door_with(open_door, scripted_engine)
    assert error_at_end((await client.post(door)).body)["code"] == "upstream_error"
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken", status="200") == 1
    assert samples.total("gateway_answers_broken_total", reason="reset") == 1
    assert await left(door) == (1, 1)


@pytest.mark.loops("leaping")  # the deadline does not pass while the machine stands still
async def test_comments_are_no_answer_to_the_clients_own_deadline(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(never)
    door = await door_with(open_door, scripted_engine)
    reply = await post(door, deadline_ms=500)
    assert reply.body.startswith(COMMENT)
    assert "x-request-timeout-ms" in error_at_end(reply.body)["message"]
    assert (await door.idle()).total("gateway_requests_total", outcome="refused", status="200") == 1


async def test_a_client_that_leaves_after_comments_frees_the_engine(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(never)
    door = await door_with(open_door, scripted_engine)
    async with door.session.post(door.url + CHAT, json=STREAM, headers=authorized(door)) as response:
        assert await response.content.readexactly(len(COMMENT)) == COMMENT
        received = await scripted_engine.asked()
        response.close()
    await received.connection.gone(within_s=PROMPTLY_S)
    assert (await door.idle()).total("gateway_requests_total", outcome="client_gone", status="200") == 1


async def test_a_gateway_that_stops_tells_it_after_comments(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(never)
    door = await door_with(open_door, scripted_engine)
    async with door.session.post(door.url + CHAT, json=STREAM, headers=authorized(door)) as response:
        assert await response.content.readexactly(len(COMMENT)) == COMMENT
        stopping = asyncio.create_task(door.gateway.stop())
        assert error_at_end(await response.content.read())["code"] == "draining"
    await stopping
