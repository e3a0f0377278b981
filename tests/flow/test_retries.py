"""Failed attempts: another replica answers as long as the client has nothing yet, and the call is charged once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import Connection, ScriptedEngine, Step, close, never, reset
from tests.envelope import error_of
from tests.transcripts import (
    DONE,
    answer,
    chat,
    chat_role,
    chunked,
    error_event,
    head,
    http,
    sse,
    transcript,
    usage_event,
)

OUTPUT = 50
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": OUTPUT}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
# What the machine stands still for is no time that a replica took, or a pause.
UNHURRIED = pytest.mark.loops("leaping")
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
RULES = [
    {"name": "requests", "per": ["key"], "requests": 1000, "window": "1h"},
    {"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "1h"},
]


def ask(*, stream: bool) -> dict[str, Any]:
    return ASK | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


async def door_to(open_door: OpenDoor, first: ScriptedEngine, second: ScriptedEngine) -> Door:
    """Open a gateway that asks `first` before `second`; for the model `hurried`, neither may be silent for long."""
    replicas = [{"url": first.url, "weight": 1000}, {"url": second.url}]
    hurried = {"pool": "main", "timeouts": {"first_byte": "200ms", "answer": "200ms"}}
    return await open_door(
        pools={"main": {"replicas": replicas}}, models={"hurried": hurried}, limits={"plans": {"standard": RULES}}
    )


async def charged(door: Door) -> tuple[int, int]:
    """Return how many calls and output tokens the key was charged before this, by what the next call has left."""
    await door.idle()
    reply = await door.post(CHAT, ASK)
    calls, tokens = [int(reply.headers[f"x-ratelimit-remaining-{measure}"]) for measure in ("requests", "tokens")]
    return 1000 - calls - 1, 1000 - tokens - OUTPUT


WHOLE = answer("chat", "Hi", usage=(3, 1))

BEFORE_ANYTHING: dict[str, tuple[Step, ...]] = {
    "reset at once": (reset,),
    "closed at once": (close,),
    "half a head": (b"HTTP/1.1 200 OK\r\nconte", reset),
    "garbage": (b"\x16\x03\x01 not HTTP\r\n\r\n",),
    "an error of its own": (http(b"", status="500 X"),),
    "silence": (never,),
    "an interim answer, then silence": (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", never),
    "too many fields": (b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: b\r\n" % i for i in range(300)) + b"\r\n",),
    "a field too large": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",),
}
STREAM_ONLY: dict[str, tuple[Step, ...]] = {
    "a head only, then a reset": (head(), reset),
    "a head only, then a close": (head(), close),
    "a head only, then silence": (head(), never),
    "a comment only": (head(), chunked(b": keep-alive\n\n"), reset),
    "comments, then silence": (head(), chunked(b": a\n\n: b\n\n"), never),
    "half an event": (head(), chunked(chat_role()[:40]), reset),
    "an event without its blank line": (head(), chunked(chat_role()[:-1]), reset),
    "an error and its end": (sse([error_event(), DONE]),),
    "an error and no end": (head(), chunked(b": keep-alive\n\n" + error_event()), never),
    "a usage and its end": (sse([usage_event(3, 0), DONE]),),
    "an error and a reset": (head(), chunked(error_event()), reset),
}
WHOLE_ONLY: dict[str, tuple[Step, ...]] = {
    "a head only": (head(content_type="application/json", framing="length", length=1000), reset),
    "a part of the body": (http(WHOLE)[:-10], reset),
    "a body cut short": (http(WHOLE)[:-10], close),
    "a chunk cut short": (head(content_type="application/json") + chunked(WHOLE)[:-9], close),
    "a chunk without the last": (head(content_type="application/json") + chunked(WHOLE), close),
}
FAILURES = {
    **{(name, False): steps for name, steps in (BEFORE_ANYTHING | WHOLE_ONLY).items()},
    **{(name, True): steps for name, steps in (BEFORE_ANYTHING | STREAM_ONLY).items()},
}


# Alone these are another answer than a 502.
FULL = {("full", stream): (http(b"", status="503 X"),) for stream in (False, True)}


SILENCES = [(name, stream) for name, stream in FAILURES if "silence" in name]


@pytest.mark.parametrize(("name", "stream"), [one for one in [*FAILURES, *FULL] if one not in SILENCES])
async def test_a_failed_attempt_is_made_good_by_another_replica_and_charged_once(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, name: str, *, stream: bool
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(*(FAILURES | FULL)[name, stream])
    await is_made_good(await door_to(open_door, scripted_engine, second), scripted_engine, second, ask(stream=stream))


@pytest.mark.parametrize(("name", "stream"), SILENCES)
@UNHURRIED
async def test_a_silent_attempt_is_made_good_by_another_replica_in_as_little_time_and_charged_once(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, name: str, *, stream: bool
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(*FAILURES[name, stream])
    door = await door_to(open_door, scripted_engine, second)
    await is_made_good(door, scripted_engine, second, ask(stream=stream) | {"model": "hurried"})


async def is_made_good(door: Door, first: ScriptedEngine, second: ScriptedEngine, call: dict[str, Any]) -> None:
    """Check that this call is answered by `second`, after one attempt at `first`."""
    reply = await door.post(CHAT, call)
    assert reply.status == 200
    assert b"Hello" in reply.body
    assert (len(first.requests), len(second.requests)) == (1, 1)
    sent = [engine.requests[0] for engine in (first, second)]
    assert sent[0].body == sent[1].body
    assert {request.header("x-request-id") for request in sent} == {reply.headers["INFERENCE-ID"]}
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total") == 2
    assert samples.total("gateway_upstream_attempts_total", result="answered") == 1
    assert samples.total("gateway_requests_total", outcome="ok", status="200") == 1
    assert samples.total("gateway_tokens_total", kind="completion") == 2
    assert await charged(door) == (1, 2)


@pytest.mark.parametrize(("name", "stream"), FAILURES)
async def test_where_every_attempt_fails_it_is_502_and_no_token_is_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, name: str, *, stream: bool
) -> None:
    second = await scripted_engines()
    for engine in (scripted_engine, second):
        engine.answer(*FAILURES[name, stream])
    door = await door_to(open_door, scripted_engine, second)
    silent = (name, stream) in SILENCES
    reply = await door.post(CHAT, ask(stream=stream) | ({"model": "hurried"} if silent else {}))
    code = "upstream_timeout" if silent else "upstream_error"
    error_of(reply, 502, code, "upstream_error")
    assert (len(scripted_engine.requests), len(second.requests)) == (1, 1)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="upstream_failed", status="502") == 1
    assert samples.total("gateway_tokens_total") == 0
    assert await charged(door) == (0, 0)


@STREAM
async def test_a_replica_that_refuses_connections_is_passed_over(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines, *, stream: bool
) -> None:
    second = await scripted_engines()
    first = f"127.0.0.1:{scripted_engine.port}"
    await scripted_engine.close()
    door = await door_to(open_door, scripted_engine, second)
    assert (await door.post(CHAT, ask(stream=stream))).status == 200
    assert await charged(door) == (1, 2)
    found = [(one["replica"], one["result"]) for one in (await door.idle()).labels("gateway_upstream_attempts_total")]
    assert sorted(found) == sorted([(first, "connect"), (f"127.0.0.1:{second.port}", "answered")])
    await second.close()
    error_of(await door.post(CHAT, ask(stream=stream)), 502, "upstream_error", "upstream_error")


@STREAM
async def test_no_more_replicas_are_asked_than_the_pool_allows(
    open_door: OpenDoor, scripted_engines: MoreEngines, *, stream: bool
) -> None:
    engines = [await scripted_engines() for _ in range(4)]
    for engine in engines:
        engine.answer(reset)
    door = await open_door(*[engine.url for engine in engines], pools={"main": {"attempts": 3}})
    error_of(await door.post(CHAT, ask(stream=stream)), 502, "upstream_error", "upstream_error")
    assert sorted(len(engine.requests) for engine in engines) == [0, 1, 1, 1]


async def test_nothing_is_tried_again_once_an_event_went_out(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    second = await scripted_engines()
    events = [chat_role(), chat(" a")]
    scripted_engine.answer(head(), *map(chunked, events), reset)
    door = await door_to(open_door, scripted_engine, second)
    reply = await door.post(CHAT, ask(stream=True))
    assert reply.body.startswith(b"".join(events))
    assert second.requests == []
    assert await charged(door) == (1, 1)


async def close_on_next_byte(connection: Connection) -> None:
    await connection.next_byte()
    connection._received.clear()  # not read any more
    await close(connection)


@pytest.mark.parametrize("how", ["closed while idle", "closed by the next request"])
@STREAM
async def test_a_stale_connection_is_replaced_without_an_attempt(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, *, how: str, stream: bool
) -> None:
    good = sse(transcript(" Hello", usage=(3, 1))) if stream else http(WHOLE)
    door = await open_door(scripted_engine.url, pools={"main": {"attempts": 1}})
    for _ in range(20):
        scripted_engine.answer(good, *((close_on_next_byte,) if how == "closed by the next request" else ()))
        assert (await door.post(CHAT, ask(stream=stream))).status == 200
        if how == "closed while idle":
            scripted_engine.close_idle()
    samples = await door.idle()
    assert samples.total("gateway_upstream_attempts_total", result="answered") == 20
    assert samples.total("gateway_upstream_attempts_total") == 20
    assert len(scripted_engine.connections) >= 20


async def test_a_fresh_connection_that_breaks_is_an_attempt(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(reset)
    door = await open_door(scripted_engine.url)
    error_of(await door.post(CHAT, ask(stream=False)), 502, "upstream_error", "upstream_error")
    assert len(scripted_engine.requests) == 1


async def test_an_answer_that_began_on_a_pooled_connection_is_not_asked_for_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    assert (await door.post(CHAT, ask(stream=True))).status == 200
    scripted_engine.answer(head(), reset)
    error_of(await door.post(CHAT, ask(stream=True)), 502, "upstream_error", "upstream_error")
    assert len({request.connection.id for request in scripted_engine.requests}) == 1
    assert len(scripted_engine.requests) == 2


async def test_a_client_that_leaves_is_not_tried_elsewhere(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, scripted_engines: MoreEngines
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(never)
    door = await door_to(open_door, scripted_engine, second)
    call = asyncio.create_task(door.post(CHAT, ask(stream=True)))
    await scripted_engine.asked()
    call.cancel()
    await scripted_engine.requests[0].connection.gone(within_s=PROMPTLY_S)
    await door.idle()
    assert second.requests == []


@UNHURRIED
async def test_a_client_that_leaves_in_the_pause_before_a_retry_gets_none_and_is_charged_nothing(
    open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    """The pauses grow: the fifth is an eighth of a second at least."""
    engines = [await scripted_engines() for _ in range(6)]
    for engine in engines:
        engine.answer(http(b"", status="500 X"))
    pools = {"main": {"attempts": 6}}
    door = await open_door(*[engine.url for engine in engines], pools=pools, limits={"plans": {"standard": RULES}})
    call = asyncio.create_task(door.post(CHAT, ask(stream=True)))
    await door.until(lambda samples: samples.total("gateway_upstream_attempts_total", result="status") == 5)
    call.cancel()
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="client_gone", status="499") == 1
    assert samples.total("gateway_upstream_attempts_total") == sum(len(engine.requests) for engine in engines) == 5
    assert await charged(door) == (0, 0)
