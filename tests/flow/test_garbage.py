"""What a call held is free with its end: nothing of it waits for the collector, which comes late to a busy process."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gateway.calls.call import Call
from gateway.client.connection import ClientConnection
from gateway.client.request import Request
from gateway.relay.connection import Connection
from gateway.relay.exchange import Exchange
from gateway.relay.stream import Stream
from tests.deadlines import DEADLINE_S
from tests.doors import Door, OpenDoor
from tests.engines import ScriptedEngine, never, reset
from tests.leaving import client_of
from tests.raw_client import raw_client
from tests.transcripts import chat, chunked, head, http

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = ASK | {"stream": True}
OURS = (ClientConnection, Request, Call, Exchange, Stream, Connection)
CALLS = 5


async def a_whole_answer(door: Door, _: ScriptedEngine) -> None:
    async with client_of(door) as client:
        await client.ask(door, ASK)
        await client.reads(b"Hello")


async def a_stream(door: Door, _: ScriptedEngine) -> None:
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        await client.reads(b"[DONE]")


async def a_client_that_leaves_a_stream(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(head(), chunked(chat(" a")), never)
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        await client.reads(b" a")
        client.leave("reset")


async def a_client_that_leaves_before_an_answer(door: Door, engine: ScriptedEngine) -> None:
    asked = len(engine.requests)
    engine.answer(never)
    async with client_of(door) as client:
        await client.ask(door, ASK)
        await engine.asked(asked + 1)
        client.leave("fin")


async def a_client_that_leaves_its_upload(door: Door, _: ScriptedEngine) -> None:
    async with client_of(door) as client:
        await client.ask(door, ASK, withhold=5)
        client.leave("reset")


async def an_engine_that_breaks(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(head(), chunked(chat(" a")), reset)
    async with client_of(door) as client:
        await client.ask(door, STREAM)
        await client.reads(b"upstream_error")


async def an_engine_that_fails(door: Door, engine: ScriptedEngine) -> None:
    engine.answer(http(b"", status="500 X"))
    async with client_of(door) as client:
        await client.ask(door, ASK)
        await client.reads(b"upstream_error")


async def a_refused_call(door: Door, _: ScriptedEngine) -> None:
    async with client_of(door) as client:
        await client.ask(door, {"model": "none"})
        await client.reads(b'"error"')


async def no_http(door: Door, _: ScriptedEngine) -> None:
    async with raw_client(door.port) as client:
        await client.ask(b"\r\n\r\nnonsense\r\n\r\n")


Act = Callable[[Door, ScriptedEngine], Awaitable[None]]
ACTS: list[Act] = [
    a_whole_answer,
    a_stream,
    a_client_that_leaves_a_stream,
    a_client_that_leaves_before_an_answer,
    a_client_that_leaves_its_upload,
    an_engine_that_breaks,
    an_engine_that_fails,
    a_refused_call,
    no_http,
]


@pytest.fixture
def left_over() -> Iterator[Callable[[], list[str]]]:
    """Switch the collector off; give what tells the kinds of our objects that there are more since."""
    gc.collect()
    gc.freeze()  # what there is, other tests' failures among it, is none of ours and much to look through
    gc.disable()
    yield lambda: [type(one).__name__ for one in gc.get_objects() if isinstance(one, OURS)]
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_nothing_waits_for_the_collector(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, left_over: Callable[[], list[str]], act: Act
) -> None:
    door = await open_door(scripted_engine.url)
    for _ in range(CALLS):
        await act(door, scripted_engine)
        await door.idle()
    try:
        async with asyncio.timeout(DEADLINE_S):
            while left_over() not in ([], ["Connection"]):  # one to the engine waits for the next call
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"still there: {left_over()}")
