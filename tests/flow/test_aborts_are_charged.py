"""Leaving before the usage comes is no way to free tokens: what was generated is charged, once, and the limit holds."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import OpenDoor
from tests.engines import ScriptedEngine, Step, never
from tests.leaving import How, client_of
from tests.transcripts import chat, chat_role, chunked, head, usage_of

LIMIT, OUTPUT, CALLS = 500, 100, 100
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": OUTPUT}
RULES = [{"name": "tokens", "per": ["key"], "tokens": LIMIT, "window": "day"}]
# The most that one call can be charged: all its output, and an estimate of its input.
ONE_CALL = OUTPUT + 40


def until_abort(generated: int, *, finished: bool, totals: bool) -> tuple[Step, ...]:
    """Return the answer of an engine that has generated so much, and has not told the usage yet."""
    events = [told(chat_role, 0, totals=totals)]
    for n in range(1, generated + 1):
        last = "length" if finished and n == generated else None
        events.append(told(partial(chat, f" {n}.", finish_reason=last), n, totals=totals))
    return (head(), *map(chunked, events), never)


def told(event: Callable[..., bytes], generated: int, *, totals: bool) -> bytes:
    return event(usage=usage_of((10, generated))) if totals else event()


POINTS = {
    "before any token": (0, False, b'"assistant"'),
    "after the first": (1, False, b'" 1."'),
    "after 99": (99, False, b'" 99."'),
    "after the finish reason": (99, True, b'" 98."'),
}


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("engine", ["vllm", "openai"], ids=["running totals", "none"])
@pytest.mark.parametrize("name", POINTS)
async def test_a_hundred_aborts_spend_the_limit_and_no_more(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str, engine: str, how: How
) -> None:
    generated, finished, shown = POINTS[name]
    totals = engine == "vllm"
    pools = {"main": {"engine": engine}}
    door = await open_door(scripted_engine.url, pools=pools, limits={"plans": {"standard": RULES}})
    for _ in range(CALLS):
        scripted_engine.answer(*until_abort(generated, finished=finished, totals=totals))
        async with client_of(door) as client:
            await client.ask(door, ASK | {"stream": True})
            if b" 429 " in await client.reads(b"\r\n\r\n"):
                break
            await client.reads(shown)
            client.leave(how)
            async with asyncio.timeout(PROMPTLY_S):
                await door.idle()
    served = len(scripted_engine.requests)
    assert served < CALLS
    samples = await door.metrics()
    assert samples.total("gateway_requests_total", outcome="client_gone") == served
    assert samples.total("gateway_usage_missing_total") == (0 if totals else served)
    source = "engine" if totals else "estimated"
    assert samples.total("gateway_tokens_total", kind="completion", source=source) == generated * served
    charged = samples.total("gateway_tokens_total", source=source)
    assert charged == samples.total("gateway_tokens_total")
    # A call that would reserve more than is left is refused, and no call used more than it reserved.
    assert LIMIT - ONE_CALL < charged <= LIMIT
