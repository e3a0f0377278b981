"""A client's own deadline: it covers every wait of a call, ends it visibly, and never allows more than the operator."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.calls.parse import parse
from gateway.client.answer import Answer
from gateway.client.request import Request
from gateway.clock import Clock, SystemClock
from gateway.config import Requests
from gateway.errors import DeadlinePassed
from gateway.identity.principal import Principal
from gateway.relay.attempts import Attempts
from tests.backlog import nobody_accepts
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, Step, never
from tests.envelope import BAD_REQUEST, error_of
from tests.identity_provider import IdentityProvider, SetClock, signing_key
from tests.leaping import leaping
from tests.raw_client import RawClient, raw_client
from tests.transcripts import answer, chat, chat_role, chunked, head

NAME = "x-request-timeout-ms"
IN_A_WHILE = "15000"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
RULES = [
    {"name": "requests", "per": ["key"], "requests": 1000, "window": "366d"},
    {"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "366d"},
]
WHOLE = answer("chat", "Hello", usage=(3, 1))
WHOLE_HEAD = head(content_type="application/json", framing="length", length=len(WHOLE))
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]


async def post(door: Door, milliseconds: str, *, stream: bool = False, token: str | None = None) -> Reply:
    """Send a call with a deadline; one that does not hold must not hold up the tests."""
    async with asyncio.timeout(DEADLINE_S):
        return await door.post(CHAT, ASK | {"stream": stream}, token=token, **{NAME: milliseconds})


def too_late(reply: Reply) -> None:
    message = error_of(reply, 502, "upstream_timeout", "upstream_error")
    assert NAME in message


@pytest.mark.parametrize(
    "value", ["0", "-1", "1.5", "1e3", "+5", "30s", "", "abc", "0x10", "1000, 2000", "1 0", "٣", "9" * 40]
)
async def test_what_is_not_a_positive_integer_is_refused(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, value: str
) -> None:
    door = await open_door(scripted_engine.url)
    error_of(await post(door, value), 400, "invalid_value", BAD_REQUEST, param=NAME)
    assert scripted_engine.requests == []


@STREAM
async def test_a_call_within_its_deadline_is_answered_and_the_engine_is_not_told(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    door = await open_door(scripted_engine.url)
    for value in ("5000", "0000005000", "99999999999999"):
        assert (await post(door, value, stream=stream)).status == 200
    assert all(request.header(NAME) is None for request in scripted_engine.requests)


@pytest.mark.loops("leaping")
@pytest.mark.parametrize("steps", [(never,), (head(), never), (head(), chunked(b": ping\n\n"), never)])
async def test_before_the_first_event_it_is_a_502_and_no_replicas_fault(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, steps: tuple[Step, ...]
) -> None:
    await beaten(open_door, scripted_engine, await scripted_engines(), steps, stream=True)


@pytest.mark.loops("leaping")
@pytest.mark.parametrize("steps", [(never,), (WHOLE_HEAD, never), (WHOLE_HEAD, WHOLE[:9], never)])
async def test_before_a_whole_answer_it_is_a_502_and_no_replicas_fault(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, steps: tuple[Step, ...]
) -> None:
    await beaten(open_door, scripted_engine, await scripted_engines(), steps, stream=False)


async def beaten(
    open_door: OpenDoor, first: ScriptedEngine, second: ScriptedEngine, steps: tuple[Step, ...], *, stream: bool
) -> None:
    first.answer(*steps)
    pool = {"replicas": [{"url": first.url, "weight": 1000}, second.url]}
    loop, clock = leaping()
    door = await open_door(clock=clock, pools={"main": pool}, limits={"plans": {"standard": RULES}})
    call = asyncio.create_task(post(door, IN_A_WHILE, stream=stream))
    await first.asked()
    await loop.leap(9)
    assert not call.done()
    await loop.leap(6.1)
    too_late(await call)
    await first.requests[0].connection.gone(within_s=PROMPTLY_S)
    assert second.requests == []
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total") == 1
    assert samples.total("gateway_upstream_attempts_total", result="client_deadline") == 1
    assert samples.total("gateway_requests_total", outcome="refused", status="502") == 1
    assert samples.total("gateway_tokens_total") == 0
    left = (await door.post(CHAT, ASK)).headers
    assert left["x-ratelimit-remaining-tokens"] == "950"  # what that last call reserves, and nothing else
    assert left["x-ratelimit-remaining-requests"] == "998"  # the call counts: engines are not to be hammered for free


async def test_after_the_first_event_the_stream_ends_visibly_and_is_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = chat_role() + chat(" a") + chat(" b")
    scripted_engine.answer(head(), chunked(events), never)
    door = await open_door(scripted_engine.url)
    reply = await post(door, "2000", stream=True)
    assert (reply.status, reply.body[: len(events)]) == (200, events)
    error = json.loads(reply.body.removeprefix(events).removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream_timeout"
    assert NAME in error["message"]
    await scripted_engine.requests[0].connection.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken", status="200") == 1
    assert samples.total("gateway_answers_broken_total", reason="client_deadline") == 1
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 2


@STREAM
async def test_it_never_allows_more_than_the_configuration(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, stream: bool
) -> None:
    scripted_engine.answer(never)
    timeouts = {"first_byte": "200ms", "answer": "200ms"}
    door = await open_door(scripted_engine.url, pools={"main": {"timeouts": timeouts}})
    message = error_of(await post(door, "60000", stream=stream), 502, "upstream_timeout", "upstream_error")
    assert NAME not in message
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="client_deadline") == 0
    assert samples.total("gateway_requests_total", outcome="upstream_failed") == 1


async def test_it_covers_the_wait_for_a_connection(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    with nobody_accepts() as url:
        replicas = [{"url": url, "weight": 1000}, scripted_engine.url]
        door = await open_door(pools={"main": {"replicas": replicas, "timeouts": {"connect": "60s"}}})
        too_late(await post(door, "2000"))
        samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="client_deadline") == 1
    assert scripted_engine.requests == []
    assert (await door.get("/v1/usage")).json()["data"] == []  # no engine was asked


async def test_it_covers_the_wait_for_the_body(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        await send_but_for_the_end(client, door, "200")
        too_late(await client.answer())
        await client.send(b"}")  # too late for this call; its connection goes on
        assert (await client.ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")).status == 401
    assert scripted_engine.requests == []
    assert (await door.idle()).total("gateway_requests_total", outcome="refused", status="502") == 1


async def test_a_client_that_leaves_before_its_deadline_has_left(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        await send_but_for_the_end(client, door, "60000")
        client.leave()
    samples = await door.until(lambda s: s.total("gateway_requests_total") == 1)
    assert samples.total("gateway_requests_total", outcome="client_gone", status="499") == 1


async def send_but_for_the_end(client: RawClient, door: Door, milliseconds: str) -> None:
    body = json.dumps(ASK).encode()
    lines = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {door.token()}\r\n{NAME}: {milliseconds}\r\n"
    lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    await client.send(lines.encode() + body[:-1])


async def test_it_covers_the_wait_for_an_issuers_keys(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    async with IdentityProvider() as provider:
        provider.hang()
        door = await open_door(scripted_engine.url, auth={"issuers": [{"issuer": provider.issuer}]})
        token = signing_key().token({"iss": provider.issuer, "sub": "key-1", "exp": SystemClock().now() + 60})
        too_late(await post(door, "200", token=token))
    assert scripted_engine.requests == []


async def test_it_covers_the_wait_for_the_store(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    connections: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        limits: dict[str, Any] = {"store": f"redis://127.0.0.1:{port}/0", "store_timeout": "10s"}
        door = await open_door(scripted_engine.url, limits=limits | {"plans": {"standard": RULES}})
        began = asyncio.get_running_loop().time()
        too_late(await post(door, "200"))
        assert asyncio.get_running_loop().time() < began + PROMPTLY_S
        assert scripted_engine.requests == []
        for connection in connections:
            connection.close()


async def test_after_it_no_attempt_begins(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    attempts = await beaten_by(SystemClock(), await open_door(scripted_engine.url), left_s=0)
    assert (attempts.tried, attempts.asked_at) == ([], None)


async def test_what_ended_the_last_attempt_ends_the_call_though_the_clock_says_otherwise(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    with nobody_accepts() as url:
        pool = {"replicas": [{"url": url, "weight": 1000}, scripted_engine.url], "timeouts": {"connect": "60s"}}
        stands_still = SetClock()  # the event loop's time need not be the clock's
        attempts = await beaten_by(stands_still, await open_door(pools={"main": pool}), left_s=0.1)
    assert len(attempts.tried) == 1


async def beaten_by(clock: Clock, door: Door, *, left_s: float) -> Attempts:
    """Run a call's attempts with so much time left, which must be too little; return them."""
    pipeline = door.gateway._pipeline
    attempts = Attempts(
        pipeline._upstream,
        parse("chat", json.dumps(ASK).encode(), requests=Requests()),
        pipeline.serving.catalog.resolve("tiny", Principal(tenant="acme", key="key-1")),
        clock=clock,
        observer=pipeline._metrics,
        deadline_at=clock.monotonic() + left_s,
    )
    request = Request(door.gateway._clients(), b"POST", b"/", fields={}, keep_alive=True)
    with pytest.raises(DeadlinePassed):
        await attempts.run(request, Answer(request, now=0), inference_id="id", fields="")
    return attempts
