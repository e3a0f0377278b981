"""Every ending of a call that is no answer, and what must hold of its key's two slots afterwards."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, Door, Reply
from tests.engines import ScriptedEngine, Step, close, never, reset
from tests.envelope import error_of
from tests.transcripts import chat, chat_role, chunked, error_event, head, http, sse

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = ASK | {"stream": True}

ROUNDS = 20  # a slot that one ending in ten keeps is found too
SLOTS: dict[str, Any] = {"name": "slots", "per": ["key"], "concurrent": 2}

BROKEN: tuple[Step, ...] = (head(), chunked(chat(" a")))
ENDINGS: Mapping[str, tuple[tuple[Step, ...], int]] = {
    "a timeout": ((never,), 502),
    "a reset before the head": ((reset,), 502),
    "a reset in the stream": ((*BROKEN, reset), 200),
    "a stall in the stream": ((*BROKEN, never), 200),
    "garbage": ((b"garbage\r\n\r\n",), 502),
    "an answer that is none": ((http(b"{}"),), 502),
    "an engine's refusal": ((http(b"{}", status="400 X"),), 400),
    "a full engine": ((http(b"{}", status="503 X"),), 503),
    "an error in the stream": ((sse([chat_role(), error_event()]),), 200),
    "a close in the stream": ((*BROKEN, close), 200),
}
LEFT: Mapping[str, tuple[Step, ...]] = {"waiting": (never,), "in the stream": (*BROKEN, never)}


def timeouts(name: str) -> dict[str, str]:
    """Return the limits of a pool in which calls end so. No other ending may take too long on a busy machine."""
    steps, status = ENDINGS[name]
    return {"idle" if status == 200 else "first_byte": "30ms"} if never in steps else {}


async def end(door: Door, engine: ScriptedEngine, name: str) -> None:
    """Have twenty calls end so, one after another."""
    steps, status = ENDINGS[name]
    for _ in range(ROUNDS):
        engine.answer(*steps)
        assert (await door.post(CHAT, STREAM)).status == status


async def leave(door: Door, engine: ScriptedEngine, name: str) -> None:
    """Have twenty calls left by their clients at this point, one after another."""
    for _ in range(ROUNDS):
        engine.answer(*LEFT[name])
        call = asyncio.create_task(door.post(CHAT, STREAM))
        received = await engine.asked(len(engine.requests) + 1)
        call.cancel()
        await received.connection.gone(within_s=PROMPTLY_S)
        await door.idle()


async def exactly_two_run(door: Door, engine: ScriptedEngine) -> None:
    """Check that two calls run at once, that a third is refused, and that the two end well."""
    await door.idle()
    before, go = len(engine.requests), asyncio.Event()
    # On connections that are not used again: one that broke on its second call would be no ending.
    answer = http(b'{"choices":[]}', headers=[("Connection", "close")])
    for steps in [(go, answer)] * 2 + [(answer,)]:
        engine.answer(*steps)
    calls: list[asyncio.Task[Reply]] = [asyncio.create_task(door.post(CHAT, ASK)) for _ in range(2)]
    await engine.asked(before + 2)
    message = error_of(await door.post(CHAT, ASK), 429, "rate_limit_exceeded", "concurrency")
    assert "2 calls at once, 2 under way" in message
    go.set()
    assert [(await call).status for call in calls] == [200, 200]
    assert (await door.post(CHAT, ASK)).status == 200
