"""Limits as clients meet them: what 429 says, and that each call is charged once, what it used."""

import asyncio
import json
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, COMPLETIONS, OpenDoor, Reply
from tests.engines import ScriptedEngine, Step, close, never, reset
from tests.envelope import error_of
from tests.identity_provider import SetClock
from tests.transcripts import DONE, answer, chat, chat_role, chunked, head, http, sse, transcript, usage_of

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = ASK | {"stream": True, "stream_options": {"include_usage": True}}
HOUR: dict[str, Any] = {"per": ["key"], "window": "1h"}
DAY: dict[str, Any] = {"per": ["key"], "window": "day"}


def plan(*rules: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """Return the config of a plan of these rules."""
    named = [{"name": f"rule-{number}", **rule} for number, rule in enumerate(rules)]
    return {"limits": {"plans": {"standard": named}, **rest}}


def shown(reply: Reply, measure: str) -> tuple[int, int]:
    """Return the limit of `measure` and what remains of it."""
    return int(reply.headers[f"x-ratelimit-limit-{measure}"]), int(reply.headers[f"x-ratelimit-remaining-{measure}"])


def ratelimits(reply: Reply) -> dict[str, str]:
    names = [name.lower() for name in reply.headers]
    return {name: reply.headers[name] for name in sorted(names) if name.startswith("x-ratelimit")}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_answer_shows_the_tightest_limits(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    rules = [
        HOUR | {"requests": 10},
        HOUR | {"requests": 7},
        HOUR | {"tokens": 1000},
        HOUR | {"requests": 1, "shadow": True},
    ]
    door = await open_door(scripted_engine.url, **plan(*rules))
    reply = await door.post(CHAT, STREAM if stream else ASK)
    assert reply.status == 200
    headers = ratelimits(reply)
    assert sorted(headers) == [
        f"x-ratelimit-{figure}-{measure}"
        for figure in ("limit", "remaining", "reset")
        for measure in ("requests", "tokens")
    ]
    assert shown(reply, "requests") == (7, 6)
    assert headers["x-ratelimit-reset-requests"] == "8m35s"
    limit, remaining = shown(reply, "tokens")
    assert limit == 1000
    assert 1000 - 50 - 60 < remaining < 1000 - 50  # the output that may come, and an estimate of the input


@pytest.mark.parametrize(
    ("rule", "fits", "message", "headers"),
    [
        (
            {"requests": 1, "window": "30s"},
            1,
            "1 requests in 30s, 1 used",
            {"limit": "1", "remaining": "0", "reset": "30s"},
        ),
        (
            {"requests": 1, "window": "2h"},
            1,
            "1 requests in 2h0m0s",
            {"limit": "1", "remaining": "0", "reset": "2h0m0s"},
        ),
        (
            {"tokens": 60, "count": "output", "window": "60s"},
            1,
            "60 output tokens in 1m0s, 2 used or reserved, and this call reserves 59",
            {"limit": "60", "remaining": "58", "reset": "2s"},
        ),
    ],
)
async def test_a_limit_that_refills_says_which_how_much_and_when(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    rule: dict[str, Any],
    fits: int,
    message: str,
    headers: dict[str, str],
) -> None:
    door = await open_door(scripted_engine.url, **plan({"per": ["key"], **rule}))
    for _ in range(fits):
        assert (await door.post(CHAT, ASK)).status == 200
    measure = next(iter(rule))
    reply = await door.post(CHAT, ASK | {"max_tokens": 59})
    told = error_of(reply, 429, "rate_limit_exceeded", measure)
    assert told.startswith("Limit rule-0 is reached: ")
    assert message in told
    assert {name.split("-")[2]: value for name, value in ratelimits(reply).items()} == headers


async def test_a_window_that_refilled_lets_calls_through_again(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    clock = SetClock(time=SystemClock().now())
    rule = {"per": ["key"], "requests": 1, "window": "400ms"}
    door = await open_door(scripted_engine.url, clock=clock, **plan(rule))
    assert (await door.post(CHAT, ASK)).status == 200
    reply = await door.post(CHAT, ASK)
    error_of(reply, 429, "rate_limit_exceeded", "requests")
    assert (reply.headers["Retry-After"], reply.headers["retry-after-ms"]) == ("1", "1000")
    clock.advance(0.3)
    assert (await door.post(CHAT, ASK)).status == 429
    clock.advance(0.2)
    assert (await door.post(CHAT, ASK)).status == 200


@pytest.mark.parametrize("window", ["day", "month"])
async def test_a_quota_that_is_spent_says_when_it_starts_anew(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, window: str
) -> None:
    door = await open_door(scripted_engine.url, **plan({"per": ["tenant"], "requests": 2, "window": window}))
    for _ in range(2):
        assert (await door.post(CHAT, ASK)).status == 200
    message = error_of(await door.post(CHAT, ASK), 429, "quota_exceeded", "insufficient_quota")
    assert message.startswith("Quota rule-0 is spent: 2 requests per " + window)
    assert "T00:00:00Z" in message


async def test_a_call_that_can_never_fit_is_told_so(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url, **plan(HOUR | {"tokens": 1000}))
    for changes in (
        {"max_tokens": 1001},
        {"max_tokens": 500, "n": 2},
        {"max_tokens": 10, "messages": ASK["messages"] * 300},
    ):
        reply = await door.post(CHAT, ASK | changes)
        assert "max_tokens" in error_of(reply, 429, "request_exceeds_limit", "insufficient_quota")
    many = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 200, "best_of": 3}
    error_of(await door.post(COMPLETIONS, many), 429, "request_exceeds_limit", "insufficient_quota")
    for _ in range(9):
        assert (await door.post(CHAT, ASK)).status == 200
    assert len(scripted_engine.requests) == 9


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_of_a_hundred_calls_at_once_exactly_the_limit_reaches_the_engine(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    door = await open_door(scripted_engine.url, **plan(HOUR | {"requests": 10}))
    replies = await asyncio.gather(*[door.post(CHAT, STREAM if stream else ASK) for _ in range(100)])
    assert sorted(reply.status for reply in replies) == [200] * 10 + [429] * 90
    assert len(scripted_engine.requests) == 10
    assert sorted(shown(reply, "requests")[1] for reply in replies if reply.status == 200) == list(range(10))
    samples = await door.idle()
    assert samples.total("gateway_limit_decisions_total", rule="rule-0", decision="refused") == 90


async def test_calls_at_once_cannot_reserve_more_tokens_than_there_are(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    go = asyncio.Event()
    for _ in range(100):
        scripted_engine.answer(go, http(answer("chat", "Hi", usage=(3, 50))))
    door = await open_door(scripted_engine.url, **plan(HOUR | {"tokens": 500, "count": "output"}))
    calls = [asyncio.create_task(door.post(CHAT, ASK)) for _ in range(100)]
    await door.until(lambda samples: samples.total("gateway_limit_decisions_total") == 100)
    go.set()
    assert sorted([(await call).status for call in calls]) == [200] * 10 + [429] * 90
    assert len(scripted_engine.requests) == 10
    assert shown(await door.post(CHAT, ASK), "tokens") == (500, 0)


WHOLE = answer("chat", "Hi", usage=(3, 4))


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ((http(b"", status="500 X"),), 502),
        ((http(b"", status="401 X"),), 502),
        ((http(b"", status="429 X"),), 503),
        ((http(b"", status="503 X"),), 503),
        ((reset,), 502),
        ((http(WHOLE)[:-5], close), 502),
        ((http(b"{}"),), 502),
        ((never,), 502),
    ],
    ids=["500", "401", "429", "503", "reset", "cut", "no answer", "timeout"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_call_that_no_engine_answered_is_charged_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, steps: tuple[Step, ...], status: int, stream: bool
) -> None:
    rules = [HOUR | {"requests": 100}, HOUR | {"tokens": 1000, "count": "output"}, {"per": ["key"], "concurrent": 1}]
    # Of a model of its own: what is to be answered may take its time.
    short = {"first_byte": "100ms", "answer": "100ms"} if never in steps else {}
    models = {"short": {"pool": "main", "timeouts": short}}
    door = await open_door(scripted_engine.url, models=models, **plan(*rules))
    for _ in range(3):
        scripted_engine.answer(*steps)
        assert (await door.post(CHAT, (STREAM if stream else ASK) | {"model": "short"})).status == status
    reply = await door.post(CHAT, ASK)
    assert (shown(reply, "requests"), shown(reply, "tokens")) == ((100, 99), (1000, 950))


async def test_a_call_whose_engine_takes_no_connection_is_charged_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    rules = [HOUR | {"requests": 100}, HOUR | {"tokens": 1000, "count": "output"}]
    away = {"pools": {"away": {"replicas": ["http://127.0.0.1:1"]}}, "models": {"away": {"pool": "away"}}}
    door = await open_door(scripted_engine.url, **away, **plan(*rules))
    for body in (ASK, STREAM):
        error_of(await door.post(CHAT, body | {"model": "away"}), 502, "upstream_error", "upstream_error")
    reply = await door.post(CHAT, ASK)
    assert (shown(reply, "requests"), shown(reply, "tokens")) == ((100, 99), (1000, 950))


async def test_a_call_refused_before_or_by_the_engine_is_charged_no_token(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    rules = [HOUR | {"requests": 100}, HOUR | {"tokens": 1000, "count": "output"}]
    door = await open_door(scripted_engine.url, **plan(*rules))
    for body, status in (
        (b"{", 400),
        (ASK | {"n": 0}, 400),
        (ASK | {"model": "x"}, 404),
        (ASK | {"max_tokens": 1001}, 429),
    ):
        assert (await door.post(CHAT, body)).status == status
    assert shown(await door.post(CHAT, ASK), "requests") == (100, 99)
    # An engine's 400 was a request all the same: nobody may hammer engines for free.
    scripted_engine.answer(http(b'{"error":"no"}', status="422 X"))
    assert (await door.post(CHAT, ASK)).status == 400
    reply = await door.post(CHAT, ASK)
    assert (shown(reply, "requests"), shown(reply, "tokens")) == ((100, 97), (1000, 948))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_was_reserved_and_not_used_is_there_for_the_next_call(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    scripted_engine.answer(sse(transcript(*"abcd", usage=(3, 4))) if stream else http(WHOLE))
    rules = [HOUR | {"tokens": 100, "count": "output"}, HOUR | {"tokens": 1000, "count": "input"}]
    door = await open_door(scripted_engine.url, **plan(*rules))
    assert shown(await door.post(CHAT, STREAM if stream else ASK), "tokens") == (100, 50)
    await door.idle()
    reply = await door.post(CHAT, ASK | {"max_tokens": 97})
    error_of(reply, 429, "rate_limit_exceeded", "tokens")
    assert shown(reply, "tokens") == (100, 96)
    assert shown(await door.post(CHAT, ASK | {"max_tokens": 96}), "tokens") == (100, 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_tokens_count_at_their_weights_and_are_booked_as_they_are(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    told = {
        **usage_of((200, 30)),
        "prompt_tokens_details": {"cached_tokens": 155},
        "completion_tokens_details": {"reasoning_tokens": 10},
    }
    scripted_engine.answer(
        sse([chat("Hi", finish_reason="stop", usage=told), DONE])
        if stream
        else http(json.dumps({"choices": [{"message": {"content": "Hi"}}], "usage": told}).encode())
    )
    weights = {"cached": 0.1, "output": 4, "reasoning": 6}
    door = await open_door(scripted_engine.url, **plan(DAY | {"tokens": 1000, "weights": weights}))
    first = await door.post(CHAT, STREAM if stream else ASK)
    assert first.status == 200
    assert 1000 - 50 * 6 - 60 < shown(first, "tokens")[1] < 1000 - 50 * 6
    await door.idle()
    reply = await door.post(CHAT, ASK | {"max_tokens": 200})
    assert "1000 weighted tokens per day" in error_of(reply, 429, "request_exceeds_limit", "insufficient_quota")
    # 45 + 15.5 + 20 * 4 + 10 * 6, rounded up
    assert shown(reply, "tokens") == (1000, 1000 - 201)
    (booked,) = (await door.get("/v1/usage")).json()["data"]
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    assert [booked[name] for name in names] == [200, 155, 30, 10]


async def test_a_refused_call_takes_nothing_of_the_limits_it_fits(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    rules = [HOUR | {"requests": 10}, HOUR | {"tokens": 100, "count": "output"}]
    door = await open_door(scripted_engine.url, **plan(*rules))
    for _ in range(5):
        error_of(await door.post(CHAT, ASK | {"max_tokens": 101}), 429, "request_exceeds_limit", "insufficient_quota")
    reply = await door.post(CHAT, ASK)
    assert (shown(reply, "requests"), shown(reply, "tokens")) == ((10, 9), (100, 50))


async def test_a_stream_that_crosses_the_limit_is_whole_and_the_next_call_pays(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    events = transcript(*["x"] * 150, usage=(3, 150))
    scripted_engine.answer(sse(events))
    clock = SetClock(time=SystemClock().now())
    rule = {"per": ["key"], "tokens": 100, "count": "output", "window": "1s"}
    door = await open_door(scripted_engine.url, clock=clock, **plan(rule))
    reply = await door.post(CHAT, STREAM)
    assert reply.body == b"".join(events)
    assert shown(reply, "tokens") == (100, 50)  # as it was when the stream began
    await door.idle()
    reply = await door.post(CHAT, ASK | {"max_tokens": 1})
    error_of(reply, 429, "rate_limit_exceeded", "tokens")
    assert shown(reply, "tokens") == (100, 0)
    clock.advance(1.4)
    assert (await door.post(CHAT, ASK | {"max_tokens": 100})).status == 429
    clock.advance(0.2)
    reply = await door.post(CHAT, ASK | {"max_tokens": 100})
    assert reply.status == 200
    assert shown(reply, "tokens") == (100, 0)


async def test_a_stream_that_its_client_leaves_is_charged_what_was_generated(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a"), chat(" b"), chat(" c")]), never)
    door = await open_door(scripted_engine.url, **plan(HOUR | {"tokens": 100, "count": "output"}))
    call = asyncio.create_task(door.post(CHAT, STREAM))
    await door.until(lambda samples: samples.total("gateway_streams_open") == 1)
    call.cancel()
    async with asyncio.timeout(PROMPTLY_S):
        await scripted_engine.requests[0].connection.gone()
        await door.idle()
    assert shown(await door.post(CHAT, ASK), "tokens") == (100, 100 - 3 - 50)
