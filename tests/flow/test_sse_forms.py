"""Every legal way to write and to cut a stream: the client's bytes and the usage are the same, asked for or not.

Each form is a list of pairs: an event as the engine sends it when usage is asked on the client's behalf, and as it
would have sent it to a client that asks for nothing; None where it would not have sent it at all.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import pytest

from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, close, drip
from tests.leaving import client_of
from tests.transcripts import DONE, LAST_CHUNK, chunked, event, head, usage_of

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
ALL = ASK | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PROMPT, COMPLETION = 7, 2

Pair = tuple[bytes, bytes | None]
Form = Callable[[Sequence[Pair]], list[Pair]]


def said(text: str, generated: int, *, finish_reason: str | None = None) -> Pair:
    """Return an event as short as one can be, so that it can be cut at every byte."""
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}
    usage = {"usage": usage_of((PROMPT, generated))}
    direct = event(chunk | ({"system_fingerprint": "f"} if finish_reason else {}))
    return event(chunk | usage), direct


TOTAL = event({"choices": [], "usage": usage_of((PROMPT, COMPLETION)), "system_fingerprint": "f"})
STREAM = [said("\U0001f600", 1), said("é", 2, finish_reason="stop"), (TOTAL, None), (DONE, DONE)]


def ending(*ends: bytes) -> Form:
    """Return a form whose events end with these, in turn: each is the end of the line and the blank line."""

    def form(pairs: Sequence[Pair]) -> list[Pair]:
        return [
            (asked.replace(b"\n\n", end), None if direct is None else direct.replace(b"\n\n", end))
            for (asked, direct), end in zip(pairs, cycle(ends))
        ]

    return form


def rewritten(old: bytes, new: bytes) -> Form:
    """Return a form that has `new` for the first `old` of each event."""

    def form(pairs: Sequence[Pair]) -> list[Pair]:
        return [
            (asked.replace(old, new, 1), None if direct is None else direct.replace(old, new, 1))
            for asked, direct in pairs
        ]

    return form


def preceded(first: bytes) -> Form:
    """Return a form with `first` before everything."""
    return lambda pairs: [(first, first), *pairs]


def with_comments(pairs: Sequence[Pair]) -> list[Pair]:
    comment = (b": keep-alive\n\n", b": keep-alive\n\n")
    return [one for pair in pairs for one in (comment, pair)]


ENDINGS: dict[str, Form] = {
    "LF": ending(b"\n\n"),
    "CRLF": ending(b"\r\n\r\n"),
    "CR": ending(b"\r\r"),
    "mixed": ending(b"\n\r\n", b"\r\n\n", b"\r\r\n", b"\n\r"),
    "mixed otherwise": ending(b"\r\n\r", b"\r\r\n", b"\n\n", b"\r\n\r\n"),
}
FORMS: dict[str, Form] = ENDINGS | {
    "no space behind the colon": rewritten(b"data: ", b"data:"),
    "other fields": rewritten(b"data: ", b"id: 1\nevent: message\nretry: 10\nunknown: x\ndata\ndata: "),
    "fields behind the data": rewritten(b"\n\n", b"\nid: 1\n\n"),
    "a BOM": preceded(b"\xef\xbb\xbf"),
    "blank lines first": preceded(b"\n\r\n"),
    "comments": with_comments,
}
ASKED = pytest.mark.parametrize("asked", [True, False], ids=["asked", "on the client's behalf"])


async def check(door: Door, pairs: Sequence[Pair], *, asked: bool, total: int) -> None:
    """Stream what the engine was told to, and check the bytes and the books, in which `total` calls are by then."""
    reply = await door.post(CHAT, ALL if asked else ASK)
    assert reply.body == b"".join([pair[0] if asked else pair[1] or b"" for pair in pairs])
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="prompt", source="engine") == PROMPT * total
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == COMPLETION * total
    assert samples.total("gateway_requests_total", outcome="ok") == total
    assert not [line for line in door.lines if '"level":"error"' in line]


@ASKED
@pytest.mark.parametrize("name", FORMS)
async def test_a_form_arrives_as_it_is_whole_and_in_single_bytes(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, *, asked: bool
) -> None:
    pairs = FORMS[name](STREAM)
    stream = b"".join(one for one, _ in pairs)
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(head() + chunked(stream) + LAST_CHUNK)
    await check(door, pairs, asked=asked, total=1)
    scripted_engine.answer(drip(head() + chunked(stream) + LAST_CHUNK))
    await check(door, pairs, asked=asked, total=2)
    scripted_engine.answer(head() + b"".join([chunked(bytes([byte])) for byte in stream]) + LAST_CHUNK)
    await check(door, pairs, asked=asked, total=3)


@ASKED
@pytest.mark.parametrize("name", ENDINGS)
async def test_a_cut_at_any_byte_changes_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, *, asked: bool
) -> None:
    pairs = ENDINGS[name](STREAM)
    stream = b"".join(one for one, _ in pairs)
    door = await open_door(scripted_engine.url)
    expected = b"".join([pair[0] if asked else pair[1] or b"" for pair in pairs])
    for cut in range(1, len(stream)):
        first, second = chunked(stream[:cut]), chunked(stream[cut:])
        scripted_engine.answer(drip(head() + first, size=len(head() + first)), second + LAST_CHUNK)
        assert (await door.post(CHAT, ALL if asked else ASK)).body == expected, stream[:cut]
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == COMPLETION * (len(stream) - 1)


@pytest.mark.parametrize("name", ENDINGS)
async def test_data_on_several_lines_is_one_event(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    line = ENDINGS[name]([(b"x\n\n", None)])[0][0].removeprefix(b"x")[:1].replace(b"\r", b"\r\n")
    broken = rewritten(b',"', b"," + line + b'data: "')
    pairs = ENDINGS[name](broken(STREAM))
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(drip(head() + chunked(b"".join(one for one, _ in pairs)) + LAST_CHUNK))
    await check(door, pairs, asked=True, total=1)


@ASKED
@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("missing", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ENDINGS)
async def test_a_last_event_without_its_blank_line_counts(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, missing: int, framing: str, *, asked: bool
) -> None:
    *pairs, (total, none) = ENDINGS[name](STREAM[:-1])
    bare = total.rstrip(b"\r\n")
    pairs = [*pairs, (bare + total[len(bare) : len(total) - missing], none)]
    stream = b"".join(one for one, _ in pairs)
    if framing == "close":
        scripted_engine.answer(head(framing="close") + stream, close)
    else:
        scripted_engine.answer(head() + chunked(stream) + LAST_CHUNK)
    await check(await open_door(scripted_engine.url), pairs, asked=asked, total=1)


@ASKED
@pytest.mark.parametrize("name", ENDINGS)
async def test_no_event_waits_for_the_next(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, *, asked: bool
) -> None:
    pairs = ENDINGS[name]([said(f" {number}.", number) for number in range(20)])
    gates = [asyncio.Event() for _ in pairs]
    steps = [step for (sent, _), gate in zip(pairs, gates, strict=True) for step in (chunked(sent), gate)]
    scripted_engine.answer(head(), *steps, LAST_CHUNK)
    door = await open_door(scripted_engine.url)
    async with client_of(door) as client:
        await client.ask(door, ALL if asked else ASK)
        for (sent, direct), gate in zip(pairs, gates, strict=True):
            await client.reads(sent if asked else direct or b"")
            gate.set()
