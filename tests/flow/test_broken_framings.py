"""Engines that die in every framing and after any number of events: what came is relayed, and the break is visible."""

from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, Step, close, reset
from tests.envelope import error_of
from tests.event_source import data_of, error_at_end
from tests.raw_client import raw_client
from tests.transcripts import chat, chunked, head, usage_of

ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "max_tokens": 1000,
}
TOLD = ASK | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PROMPT = 7


def deaths(came: bytes) -> dict[str, tuple[Step, ...]]:
    """Return how an engine may die after it sent `came`."""
    chunks = [chunked(came)] if came else []
    length = head(framing="length", length=len(came) + 1000) + came
    return {
        "a reset": (head(), *chunks, reset),
        "a close without the last chunk": (head(), *chunks, close),
        "a chunk longer than what comes": (head(), b"%x\r\n%b" % (len(came) + 1000, came), close),
        "a chunk longer than what comes, and a reset": (head(), b"%x\r\n%b" % (len(came) + 1000, came), reset),
        "a chunk shorter than what comes": (head(), b"%x\r\n%b" % (len(came), came + b"more"), close),
        "half a chunk size": (head(), *chunks, b"1", close),
        "no chunk size": (head(), *chunks, b"\r\n"),
        "a length longer than what comes": (length, close),
        "a length longer than what comes, and a reset": (length, reset),
        "a close that nothing announced": (head(framing="close") + came, close),
        "a reset where a close would be the end": (head(framing="close") + came, reset),
    }


DEATHS = tuple(deaths(b""))
COUNTS = (0, 1, 40)


def tokens(count: int, *, told: bool) -> bytes:
    return b"".join([token(f" {n}", n, told=told) for n in range(1, count + 1)])


def token(text: str, generated: int, *, told: bool) -> bytes:
    return chat(text, usage=usage_of((PROMPT, generated))) if told else chat(text)


async def charged(door: Door, *, source: str) -> float:
    """Check that one call broke, that nothing is held for it any more, and return its completion tokens."""
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken", status="200") == 1
    assert samples.total("gateway_requests_total") == 1
    assert samples.total("gateway_streams_open") == samples.total("gateway_replica_in_flight") == 0
    return samples.total("gateway_tokens_total", kind="completion", source=source)


@pytest.mark.parametrize("told", [False, True], ids=["nothing asked", "running totals asked"])
@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize("name", DEATHS)
async def test_a_stream_that_its_engine_leaves_ends_with_an_error_and_is_charged(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, count: int, *, told: bool
) -> None:
    came = tokens(count, told=told)
    scripted_engine.answer(*deaths(came)[name])
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, TOLD if told else ASK)
    assert reply.body.startswith(came)
    assert error_at_end(reply.body)["code"] == "upstream_error"
    assert len(data_of(reply.body)) == count + 1
    assert await charged(door, source="engine" if told else "estimated") == count
    await scripted_engine.requests[0].connection.gone(within_s=PROMPTLY_S)


@pytest.mark.parametrize("name", DEATHS)
async def test_usage_asked_on_the_clients_behalf_is_charged_and_not_shown(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    scripted_engine.answer(*deaths(tokens(40, told=True))[name])
    door = await open_door(scripted_engine.url)
    reply = await door.post(CHAT, ASK)
    assert reply.body.startswith(tokens(40, told=False))
    assert error_at_end(reply.body)["code"] == "upstream_error"
    assert b"usage" not in reply.body
    assert await charged(door, source="engine") == 40


@pytest.mark.parametrize("name", DEATHS)
async def test_an_engine_that_dies_before_its_first_event_is_a_failed_attempt(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    scripted_engine.answer(*deaths(b"")[name])
    rules = [{"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "1h"}]
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": rules}})
    error_of(await door.post(CHAT, ASK), 502, "upstream_error", "upstream_error")
    assert len(scripted_engine.requests) == 1
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="upstream_failed", status="502") == 1
    assert samples.total("gateway_tokens_total") == 0
    left = await door.post(CHAT, ASK)
    assert (left.status, left.headers["x-ratelimit-remaining-tokens"]) == (200, "0")


@pytest.mark.parametrize("name", DEATHS)
async def test_the_clients_connection_serves_on_after_an_answer_that_broke(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    scripted_engine.answer(*deaths(tokens(1, told=False))[name])
    door = await open_door(scripted_engine.url)
    body = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"stream":true}'
    fields = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {door.token()}\r\n"
    call = f"{fields}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with raw_client(door.port) as client:
        error_at_end((await client.ask(call)).body)
        assert data_of((await client.ask(call)).body)[-1] == "[DONE]"


LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


@pytest.mark.parametrize("told", [False, True], ids=["on the client's behalf", "asked"])
@pytest.mark.parametrize("name", LINE_ENDS)
async def test_wherever_an_event_is_cut_the_error_stands_by_itself(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, *, told: bool
) -> None:
    whole, cut = [token(text, 1, told=True).replace(b"\n", LINE_ENDS[name]) for text in (" a", " é")]
    door = await open_door(scripted_engine.url)
    for size in range(len(cut)):
        scripted_engine.answer(head(), chunked(whole), chunked(cut[:size]) if size else b"", reset)
        body = (await door.post(CHAT, TOLD if told else ASK)).body
        error_at_end(body)
        first, *between, _ = data_of(body)
        assert first.startswith('{"id"')
        assert len(between) == (1 if size >= len(b"data") else 0)  # what came of the event; "data" alone is a field
        assert "upstream_error" not in "".join(between)
    samples = await door.idle()
    assert samples.total("gateway_requests_total", outcome="broken") == len(cut)
