"""What engines tell of usage, and what they do not: the same figure in the metrics and on the limit, never nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor
from tests.engines import Connection, Received, ScriptedEngine, close, never
from tests.transcripts import (
    DONE,
    FINGERPRINT,
    LAST_CHUNK,
    Kind,
    answer,
    chat,
    chat_role,
    chunked,
    completion,
    error_event,
    head,
    http,
    sse,
    transcript,
    usage_event,
    usage_of,
)

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = ASK | {"stream": True}
TOLD = STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
ASKED = pytest.mark.parametrize("body", [STREAM, TOLD], ids=["on the client's behalf", "asked"])
LIMIT = 100_000
PROMPT = 10


async def opened(open_door: OpenDoor, engine: ScriptedEngine, *, kind: str = "vllm", limit: int = LIMIT) -> Door:
    rule = {"name": "tokens", "per": ["key"], "tokens": limit, "count": "total", "window": "day"}
    return await open_door(engine.url, pools={"main": {"engine": kind}}, limits={"plans": {"standard": [rule]}})


async def booked(door: Door) -> tuple[int, int]:
    """Return the prompt and completion tokens of all calls; the limit must have been charged the same, in all."""
    samples = await door.idle()
    prompt, output = [int(samples.total("gateway_tokens_total", kind=kind)) for kind in ("prompt", "completion")]
    used = LIMIT - int((await door.post(CHAT, ASK)).headers["x-ratelimit-remaining-tokens"])
    reserved = used - prompt - output
    assert 50 < reserved < 100  # of this call: its output, and an estimate of its input
    assert int((await door.post(CHAT, ASK)).headers["x-ratelimit-remaining-tokens"]) == LIMIT - used - 3 - 2
    return prompt, output


def running(counts: Sequence[int]) -> list[bytes]:
    """Return the events of one choice whose totals are these."""
    last = len(counts) - 1
    return [
        chat(" x", usage=usage_of((PROMPT, count)), finish_reason="stop" if n == last else None)
        for n, count in enumerate(counts)
    ]


TOTALS: dict[str, tuple[list[bytes], int]] = {
    "and a final one": ([*running(range(1, 51)), usage_event(PROMPT, 50), DONE], 50),
    "without a final one": ([*running(range(1, 51)), DONE], 50),
    "that once go down": ([*running([*range(1, 31), 25, *range(31, 51)]), usage_event(PROMPT, 50), DONE], 50),
    "that once go down, without a final one": ([*running([*range(1, 31), 25, *range(31, 51)]), DONE], 50),
    "that end lower": ([*running([*range(1, 51), 48]), DONE], 48),
    "other than the final one": ([*running(range(1, 51)), usage_event(PROMPT, 53), DONE], 53),
    "that skip": ([*running([1, 7, 50]), usage_event(PROMPT, 50), DONE], 50),
}


@ASKED
@pytest.mark.parametrize("name", TOTALS)
async def test_running_totals_are_replaced_and_never_added(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, body: dict[str, Any]
) -> None:
    events, output = TOTALS[name]
    scripted_engine.answer(sse(events))
    door = await opened(open_door, scripted_engine)
    assert (await door.post(CHAT, body)).status == 200
    assert await booked(door) == (PROMPT, output)
    assert (await door.metrics()).total("gateway_tokens_total", source="estimated") == 0


def two_choices(first: int, second: int, *, total: tuple[int, int] | None) -> list[bytes]:
    """Return a stream of two choices, each with totals of its own; the longer goes on after the other's end."""
    events = []
    for n in range(1, max(first, second) + 1):
        events += [
            chat(" x", index=index, usage=usage_of((PROMPT, n)), finish_reason="stop" if n == count else None)
            for index, count in enumerate((first, second))
            if n <= count
        ]
    return [*events, *([usage_event(*total)] if total else []), DONE]


@ASKED
@pytest.mark.parametrize(
    ("total", "expected"), [((PROMPT, 12), (PROMPT, 12)), ((PROMPT, 15), (PROMPT, 15)), (None, (PROMPT, 12))]
)
async def test_of_two_choices_the_final_total_counts_else_the_sum(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    body: dict[str, Any],
    total: tuple[int, int] | None,
    expected: tuple[int, int],
) -> None:
    scripted_engine.answer(sse([chat("x", finish_reason="stop"), usage_event(1, 1), DONE]))
    scripted_engine.answer(sse(two_choices(4, 8, total=total)))
    door = await opened(open_door, scripted_engine)
    await door.post(CHAT, STREAM)  # tells the engine's fingerprint, without which several choices are not asked for
    reply = await door.post(CHAT, body | {"n": 2})
    assert reply.body.count(b'"finish_reason":"stop"') == 2
    assert (b'"usage"' in reply.body) == (body is TOLD)
    assert reply.body.count(FINGERPRINT.encode()) == (2 if body is STREAM else 1 if total else 0)
    prompt, output = await booked(door)
    assert (prompt - 1, output - 1) == expected


NULL: dict[str, Any] = {"usage": None}
WORDS = [" x"] * 200


def silent(kind: Kind, *, stream: bool, null: bool) -> bytes:
    """Return an answer of 200 tokens that tells no usage, with a null for it or without."""
    if not stream:
        body = answer(kind, "four" * 200)
        return http(body[:-1] + b',"usage":null}' if null else body)
    one = chat if kind == "chat" else completion
    events = [one(text, **NULL) if null else one(text) for text in WORDS]
    return sse([*events, one("", finish_reason="length", **(NULL if null else {})), DONE])


@pytest.mark.parametrize("null", [True, False], ids=["null", "no key"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("options", [None, {"include_usage": True}], ids=["on the client's behalf", "asked"])
@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_an_answer_without_usage_is_estimated_and_the_limit_bites(
    open_door: OpenDoor,
    scripted_engine: ScriptedEngine,
    kind: Kind,
    options: dict[str, Any] | None,
    *,
    stream: bool,
    null: bool,
) -> None:
    path, prompt = (CHAT, {"messages": ASK["messages"]}) if kind == "chat" else (COMPLETIONS, {"prompt": "Hi"})
    body = {"model": "tiny", "max_tokens": 50, **prompt, "stream": stream}
    body |= {"stream_options": options} if options and stream else {}
    for _ in range(20):
        scripted_engine.answer(silent(kind, stream=stream, null=null))
    door = await opened(open_door, scripted_engine, kind="openai", limit=1000)
    replies = []
    for _ in range(20):
        replies.append(await door.post(path, body))
        await door.idle()
    answered = len(scripted_engine.requests)
    assert 4 <= answered <= 5  # 200 and an estimate of its prompt each, out of 1000
    assert [reply.status for reply in replies] == [200] * answered + [429] * (20 - answered)
    samples = await door.metrics()
    assert samples.total("gateway_usage_missing_total", reason="not_reported") == answered
    assert samples.total("gateway_tokens_total", kind="completion", source="estimated") == 200 * answered
    assert samples.total("gateway_tokens_total", kind="prompt", source="estimated") >= answered


@pytest.mark.parametrize(
    "options",
    [None, {"include_usage": False}, {"include_usage": False, "include_obfuscation": False}, "absent"],
    ids=["null", "false", "false and more", "absent"],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "llamacpp", "openai"])
async def test_a_client_that_did_not_ask_gets_no_event_without_choices(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, kind: str, options: Any
) -> None:
    body = STREAM | ({} if options == "absent" else {"stream_options": options})

    async def if_asked(request: Received, connection: Connection) -> None:
        asked = request.json()["stream_options"]
        assert asked["include_usage"] is True
        assert {"include_obfuscation": False}.items() <= asked.items() or "include_obfuscation" not in (options or {})
        assert not asked.get("continuous_usage_stats") or kind in {"vllm", "sglang"}
        await connection.send(sse([chat_role(), chat(" a", finish_reason="stop"), usage_event(PROMPT, 1), DONE]))

    scripted_engine.answer_with(if_asked)
    door = await opened(open_door, scripted_engine, kind=kind)
    reply = await door.post(CHAT, body)
    moved = {"system_fingerprint": FINGERPRINT} if kind == "vllm" else {}
    assert reply.body == b"".join([chat_role(), chat(" a", finish_reason="stop", **moved), DONE])  # type: ignore[arg-type]
    assert await booked(door) == (PROMPT, 1)


async def test_what_an_engine_is_made_to_tell_everybody_only_those_get_who_asked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    told = transcript(" a", " b", usage=(PROMPT, 2), continuous=True)
    for _ in range(2):
        scripted_engine.answer(sse(told))  # vLLM with --enable-force-include-usage
    door = await opened(open_door, scripted_engine)
    assert (await door.post(CHAT, STREAM)).body == b"".join(transcript(" a", " b"))
    assert (await door.post(CHAT, TOLD)).body == b"".join(told)
    assert await booked(door) == (2 * PROMPT, 4)


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_a_hundred_errors_before_any_token_are_charged_their_prompts_and_the_limit_bites(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, framing: str
) -> None:
    limit, calls = 500, 100
    events = [chat_role(), error_event("out of memory"), DONE]
    framed = (head(), *map(chunked, events), LAST_CHUNK)
    for _ in range(calls):
        scripted_engine.answer(*framed if framing == "chunked" else (head(framing="close") + b"".join(events), close))
    door = await opened(open_door, scripted_engine, limit=limit)
    replies = []
    for _ in range(calls):
        replies.append(await door.post(CHAT, STREAM))
        if replies[-1].status == 200:
            async with asyncio.timeout(PROMPTLY_S):
                samples = await door.idle()
    served = len(scripted_engine.requests)
    assert [reply.status for reply in replies] == [200] * served + [429] * (calls - served)
    assert {reply.body for reply in replies[:served]} == {b"".join(events)}
    assert samples.total("gateway_requests_total", outcome="broken") == served
    assert samples.total("gateway_tokens_total", kind="completion") == 0
    prompts = samples.total("gateway_tokens_total", kind="prompt", source="estimated")
    assert prompts == served * (prompts // served) == limit - int(replies[-1].headers["x-ratelimit-remaining-tokens"])
    assert limit - 100 < prompts < limit
    (row,) = (await door.get("/v1/usage")).json()["data"]
    assert [row[name] for name in ("calls", "refused", "prompt_tokens")] == [served, calls - served, prompts]


CONTENT = [chat(f" w{number}") for number in range(20)]
PROMPT_FIRST = [chat_role(usage=usage_of((PROMPT, 0))), *CONTENT]


@pytest.mark.parametrize("kind", ["openai", "vllm", "llamacpp"])
@pytest.mark.parametrize("whole", [False, True], ids=["left", "whole"])
async def test_an_engine_that_tells_of_the_prompt_alone_has_not_told_of_the_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, kind: str, *, whole: bool
) -> None:
    end = [chat("", finish_reason="stop"), DONE] if whole else []
    scripted_engine.answer(head(), *map(chunked, [*PROMPT_FIRST, *end]), *([LAST_CHUNK] if whole else [never]))
    door = await opened(open_door, scripted_engine, kind=kind)
    await left_at(door, TOLD, b" w19", whole=whole)
    samples = await door.idle()
    reason = "not_reported" if whole else "client_gone"
    assert samples.total("gateway_usage_missing_total", reason=reason) == 1
    assert samples.total("gateway_tokens_total", source="estimated") == PROMPT + len(CONTENT)
    assert await of_ledger(door) == (PROMPT, len(CONTENT))


async def test_who_leaves_when_one_of_two_choices_has_its_total_pays_for_both(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    both = [chat(" a", index=0), chat(" b", index=1)] * 5
    rest = [chat(f" w{number}", index=1) for number in range(20)]
    told = [*both, chat("", index=0, finish_reason="stop"), usage_event(PROMPT, 5), *rest]
    scripted_engine.answer(head(), *map(chunked, told), never)
    door = await opened(open_door, scripted_engine, kind="llamacpp")
    await left_at(door, TOLD | {"n": 2}, b" w19", whole=False)
    assert await of_ledger(door) == (PROMPT, len(both) + len(rest))


async def of_ledger(door: Door) -> tuple[int, int]:
    """Return the prompt and completion tokens of the only call; the limit must have been charged the same."""
    await door.idle()
    page = await door.get_admin("/admin/limits/applied?tenant=acme&key=key-1&model=acme/tiny")
    [row] = (await door.get("/v1/usage")).json()["data"]
    told: tuple[int, int] = row["prompt_tokens"], row["completion_tokens"]
    assert [rule["used"] for rule in page.json()["data"]] == [sum(told)]
    return told


async def left_at(door: Door, body: dict[str, Any], mark: bytes, *, whole: bool) -> None:
    """Read a stream up to `mark` and leave, or to its end."""
    headers = {"Authorization": f"Bearer {door.token()}"}
    async with door.session.post(door.url + CHAT, json=body, headers=headers) as response:
        got = b""
        while mark not in got:
            got += await response.content.readany()
        if whole:
            await response.read()
        else:
            response.close()
