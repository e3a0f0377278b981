"""How long an engine may take: each limit ends what it is for, visibly and under its own name, and nothing else."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.backlog import nobody_accepts
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor, Reply, Samples
from tests.engines import Connection, ScriptedEngine, Step, never
from tests.envelope import error_of
from tests.transcripts import DONE, LAST_CHUNK, answer, chat, chat_role, chunked, head, http, transcript

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}
PING = chunked(b": ping\n\n")
WHOLE = answer("chat", "Hello", usage=(3, 1))
# One call at a time: a slot that is not given back refuses the next call.
ONE_AT_A_TIME = {"plans": {"standard": [{"name": "one", "per": ["key"], "concurrent": 1}]}}
SHORT = "300ms"
NOT_SO_SHORT, NOT_SO_SHORT_S = "800ms", 0.8
EVERY_S = 0.1
STILL_S = 2.0
# Where something is to come in a limit's time, that which the machine stands still for is no part of it.
UNHURRIED = pytest.mark.loops("leaping")
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]


def pause(seconds: float) -> Callable[[Connection], Awaitable[None]]:
    """Step: nothing for so long; the script ends with the connection."""

    async def step(connection: Connection) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await connection.closed.wait()
            raise ConnectionResetError("the peer left")

    return step


def steadily(*pieces: bytes) -> list[Step]:
    """Steps: one piece after the other, each after a pause that no limit minds."""
    return [step for piece in pieces for step in (pause(EVERY_S), piece)]


def for_ever(piece: bytes, *, every_s: float = 0.05) -> Step:
    """Step: the same piece until the peer leaves."""
    wait = pause(every_s)

    async def step(connection: Connection) -> None:
        while True:
            await connection.send(piece)
            await wait(connection)

    return step


async def door_with(open_door: OpenDoor, *engines: ScriptedEngine, **timeouts: str) -> Door:
    """Open a gateway with these limits, and others that nothing here reaches."""
    pool = {"timeouts": timeouts}
    return await open_door(*[engine.url for engine in engines], pools={"main": pool}, limits=ONE_AT_A_TIME)


async def post(door: Door, body: dict[str, Any]) -> Reply:
    """Send a call; a limit that does not hold must not hold up the tests."""
    async with asyncio.timeout(DEADLINE_S):
        return await door.post(CHAT, body)


async def cut(door: Door, engine: ScriptedEngine, reason: str, reply: Reply, *, after: bytes) -> None:
    """Check that a stream ended visibly after `after`, its engine was hung up on, and its slot came free."""
    assert reply.status == 200
    assert reply.body.startswith(after)
    assert b"[DONE]" not in reply.body
    last = reply.body.rstrip(b"\n").rpartition(b"\n\n")[2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_timeout"
    await engine.requests[-1].connection.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert reasons(samples) == {reason: 1}
    assert samples.total("gateway_requests_total", outcome="broken", status="200") == 1
    assert json.loads((await door.logged(1))[-1])["broken_by"] == reason
    assert (await post(door, ASK)).status == 200


def reasons(samples: Samples) -> dict[str, float]:
    return {
        sample.labels["reason"]: sample.value
        for sample in samples._samples
        if sample.name == "gateway_answers_broken_total"
    }


def results(samples: Samples) -> dict[str, float]:
    return {
        sample.labels["result"]: sample.value
        for sample in samples._samples
        if sample.name == "gateway_upstream_attempts_total"
    }


@UNHURRIED
async def test_a_stream_longer_than_every_limit_is_healthy(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = transcript(*"abcdefghij")
    assert len(events) * EVERY_S > NOT_SO_SHORT_S
    scripted_engine.answer(head(), *steadily(*map(chunked, events), LAST_CHUNK))
    limits = dict.fromkeys(("connect", "first_byte", "idle", "answer"), NOT_SO_SHORT)
    door = await door_with(open_door, scripted_engine, **limits)
    assert (await post(door, STREAM)).body == b"".join(events)
    assert reasons(await door.idle()) == {}


async def test_a_stream_that_falls_silent_ends_at_the_idle_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), chunked(chat_role()), chunked(chat(" a")), never)
    door = await door_with(open_door, scripted_engine, idle=SHORT)
    reply = await post(door, STREAM)
    await cut(door, scripted_engine, "idle_timeout", reply, after=chat_role() + chat(" a"))


@pytest.mark.parametrize("begun", [(head(),), (head(), for_ever(PING)), ()], ids=["a head", "comments", "nothing"])
async def test_a_stream_without_an_event_fails_at_the_first_byte_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, begun: tuple[Step, ...]
) -> None:
    scripted_engine.answer(*begun, never)
    door = await door_with(open_door, scripted_engine, first_byte=SHORT)
    error_of(await post(door, STREAM), 502, "upstream_timeout", "upstream_error")
    await scripted_engine.requests[-1].connection.gone(within_s=PROMPTLY_S)
    assert results(await door.idle()) == {"first_byte_timeout": 1}


@UNHURRIED
async def test_comments_keep_a_stream_that_has_begun(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    first, *others = transcript(" a", " b")
    scripted_engine.answer(head(), chunked(first), *steadily(*[PING] * 10), *map(chunked, others), LAST_CHUNK)
    door = await door_with(open_door, scripted_engine, idle=NOT_SO_SHORT)
    assert (await post(door, STREAM)).body == first + b": ping\n\n" * 10 + b"".join(others)


@UNHURRIED
async def test_an_engine_that_has_begun_and_only_comments_is_cut_at_the_total_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), chunked(chat(" a")), for_ever(PING))
    door = await door_with(open_door, scripted_engine, idle=NOT_SO_SHORT, total="1200ms")
    began = asyncio.get_running_loop().time()
    reply = await post(door, STREAM)
    assert asyncio.get_running_loop().time() - began >= 1.2  # comments are no silence
    await cut(door, scripted_engine, "total_timeout", reply, after=chat(" a") + b": ping\n\n")


@UNHURRIED
async def test_a_stream_that_goes_on_and_on_is_cut_at_the_total_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), chunked(chat_role()), for_ever(chunked(chat(" a"))))
    door = await door_with(open_door, scripted_engine, total="500ms")
    reply = await post(door, STREAM)
    sent = reply.body.count(chat(" a"))
    await cut(door, scripted_engine, "total_timeout", reply, after=chat_role() + chat(" a") * sent)
    samples = await door.metrics()
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == sent


EVENTS = [*map(chunked, transcript(" a")), LAST_CHUNK]


@pytest.mark.parametrize(
    ("stream", "steps"),
    [
        (False, [pause(0.6), http(WHOLE)]),
        (True, [pause(0.6), head(), *EVENTS]),
        (True, [head(), pause(0.6), *EVENTS]),
    ],
    ids=["whole", "a stream", "a stream with its head"],
)
async def test_an_engine_that_queues_a_call_for_longer_than_the_idle_limit_is_waited_for(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, steps: list[Step], *, stream: bool
) -> None:
    scripted_engine.answer(*steps)
    limits = {"idle": "500ms", "first_byte" if stream else "answer": "20s"}
    door = await door_with(open_door, scripted_engine, **limits)
    assert (await post(door, ASK | {"stream": stream})).status == 200
    assert results(await door.idle()) == {"answered": 1}


WHOLE_HEAD = head(content_type="application/json", framing="length", length=len(WHOLE))


@pytest.mark.parametrize(
    ("steps", "limit"),
    [
        ((never,), "answer"),
        ((WHOLE_HEAD, never), "answer"),
        ((WHOLE_HEAD, WHOLE[:9], never), "idle"),
        ((WHOLE_HEAD, *steadily(*[WHOLE[at : at + 1] for at in range(len(WHOLE))])), "total"),
    ],
    ids=["silence", "a head", "a part", "drop by drop"],
)
@UNHURRIED
async def test_a_whole_answer_in_no_time_is_had_from_another_replica(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    scripted_engines: MoreEngines,
    steps: tuple[Step, ...],
    limit: str,
) -> None:
    second = await scripted_engines()
    scripted_engine.answer(*steps)
    pool = {
        "timeouts": {limit: SHORT},
        "replicas": [{"url": scripted_engine.url, "weight": 1000}, second.url],
    }
    door = await open_door(pools={"main": pool}, limits=ONE_AT_A_TIME)
    reply = await post(door, ASK)
    assert (reply.status, len(second.requests)) == (200, 1)
    await scripted_engine.requests[-1].connection.gone(within_s=PROMPTLY_S)
    samples = await door.idle()
    assert results(samples) == {f"{limit}_timeout": 1, "answered": 1}
    assert samples.total("gateway_tokens_total", kind="completion") == 2  # the second replica's answer


async def test_a_replica_that_takes_no_connection_in_time_has_a_result_of_its_own(open_door: OpenDoor) -> None:
    with nobody_accepts() as url:
        door = await open_door(url, pools={"main": {"timeouts": {"connect": SHORT}}})
        error_of(await post(door, STREAM), 502, "upstream_error", "upstream_error")
        assert results(await door.idle()) == {"connect_timeout": 1}


@pytest.mark.parametrize(
    ("name", "pools", "models", "steps", "reason"),
    [
        ("idle", "60s", "200ms", (never,), "idle_timeout"),
        ("total", "60s", "300ms", (for_ever(PING),), "total_timeout"),
        ("total", "100ms", "5s", (pause(0.25), chunked(chat(" b", finish_reason="stop") + DONE), LAST_CHUNK), None),
        ("idle", "100ms", "5s", (pause(0.25), chunked(chat(" b", finish_reason="stop") + DONE), LAST_CHUNK), None),
    ],
)
@UNHURRIED
async def test_a_models_own_timeout_holds_in_place_of_its_pools(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    name: str,
    pools: str,
    models: str,
    steps: tuple[Step, ...],
    reason: str | None,
) -> None:
    scripted_engine.answer(head(), chunked(chat(" a")), *steps)
    entries: dict[str, Any] = {"own": {"pool": "main", "timeouts": {name: models}}}
    door = await open_door(scripted_engine.url, pools={"main": {"timeouts": {name: pools}}}, models=entries)
    await post(door, STREAM | {"model": "own"})
    assert reasons(await door.idle()) == ({} if reason is None else {reason: 1})


async def test_a_model_that_names_one_timeout_keeps_the_others_of_its_pool(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), chunked(chat(" a")), never)
    models = {"own": {"pool": "main", "timeouts": {"first_byte": "5s"}}}
    door = await open_door(
        scripted_engine.url, pools={"main": {"timeouts": {"first_byte": "10s", "idle": SHORT}}}, models=models
    )
    await post(door, STREAM | {"model": "own"})
    assert reasons(await door.idle()) == {"idle_timeout": 1}


@pytest.mark.loops("uvloop", "asyncio")
async def test_what_came_while_the_gateway_stood_still_is_not_late(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    """A process that is given no time reads late what came in time, and its loop may look at timers before it reads."""
    begun, rest = [chat_role(), chat(" a")], [chat(" b", finish_reason="stop"), DONE]
    scripted_engine.answer(head() + b"".join(map(chunked, begun)), never)
    door = await door_with(open_door, scripted_engine, idle=f"{STILL_S - 0.5}s")
    call = asyncio.create_task(post(door, STREAM))
    engine = (await scripted_engine.asked()).connection
    stall, now = socket.socketpair()

    def stand_still() -> None:
        asyncio.get_running_loop().remove_reader(stall)
        engine.send_at_once(b"".join(map(chunked, rest)) + LAST_CHUNK)
        time.sleep(STILL_S)  # the loop itself is held up: nothing is waited for

    with stall, now:
        asyncio.get_running_loop().add_reader(stall, stand_still)
        now.send(b".")
        assert (await call).body == b"".join([*begun, *rest])
