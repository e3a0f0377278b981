"""The benchmark of many streams: every byte is compared, every event timed, and what is wrong is told."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import engine, report
from bench.calls import calls, identity, stamped
from bench.crowd import Crowd
from bench.rounds import Running
from bench.stamped import Reading
from bench.stand import Stand
from bench.streams import STRAIGHT, Size, Streams

TIMED = 5
STREAM = 7
_, SHAPE = stamped("token", STREAM, start_ns=0, timed=TIMED)
TIMES = [10**9 * index for index in range(TIMED)]
EVENTS = [
    SHAPE.opening,
    *(SHAPE.token(index, stream=STREAM, value=time) for index, time in enumerate(TIMES)),
    SHAPE.token(TIMED, stream=STREAM, value=sum(TIMES)),
    SHAPE.ending,
]
BODY = b"".join(EVENTS)
NOW = 10**10


def read(*pieces: bytes, stream: int = STREAM) -> tuple[Reading, list[int]]:
    delays: list[int] = []
    reading = Reading(SHAPE, stream, delays)
    for piece in pieces:
        reading.feed(piece, NOW)
    return reading, delays


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with await engine.listen(0) as server:
        yield server.sockets[0].getsockname()[1]


@given(st.lists(st.integers(0, len(BODY)), max_size=20))
def test_a_right_stream_is_whole_and_each_event_timed_however_it_is_split(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(BODY)]
    reading, delays = read(*(BODY[start:end] for start, end in pairwise(bounds)))
    assert reading.whole
    assert delays == [NOW - time for time in TIMES]


@given(st.integers(0, len(BODY) - 1), st.integers(0, 255))
def test_any_other_byte_is_noticed(at: int, byte: int) -> None:
    changed = BODY[:at] + bytes([byte]) + BODY[at + 1 :]
    reading, _ = read(changed)
    assert reading.whole is (changed == BODY)


@pytest.mark.parametrize("index", range(len(EVENTS)))
def test_an_event_that_is_lost_doubled_or_moved_is_noticed(index: int) -> None:
    before, event, behind = EVENTS[:index], EVENTS[index], EVENTS[index + 1 :]
    for pieces in (before + behind, [*before, event, event, *behind], [*before, *behind, event]):
        assert read(*pieces)[0].whole is (pieces == EVENTS)


@given(st.integers(0, TIMED - 1), st.integers(0, 10**15 - 1))
def test_another_time_in_an_event_is_noticed(index: int, time: int) -> None:
    events = list(EVENTS)
    events[1 + index] = SHAPE.token(index, stream=STREAM, value=time)
    assert read(*events)[0].whole is (time == TIMES[index])


def test_another_streams_events_are_noticed() -> None:
    assert not read(BODY, stream=STREAM + 1)[0].right


async def test_streams_straight_from_the_engine_are_right_and_lose_nothing(port: int) -> None:
    crowd = Crowd(port, "token", streams=20, timed=TIMED)
    assert await crowd.open()
    assert await crowd.end() == {None: 20}
    assert len(crowd.delays) == 20 * TIMED
    assert min(crowd.delays) > 0


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "status 503: busy"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9999, "wrong bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "ended after 0 events"),
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"", "cut off after 0 events"),
    ],
)
async def test_what_is_wrong_with_a_stream_is_told(answer: bytes, wrong: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        crowd = Crowd(server.sockets[0].getsockname()[1], "token", streams=2, timed=TIMED)
        assert not await crowd.open()
        assert await crowd.end() == Counter({wrong: 2})


async def test_a_port_that_nobody_listens_on_opens_no_stream() -> None:
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    crowd = Crowd(port, "token", streams=2, timed=TIMED)
    assert not await crowd.open()
    assert await crowd.end() == {"cut off after 0 events": 2}


async def test_a_round_takes_every_figure_of_every_proxy(port: int) -> None:
    token = identity().token
    engine_itself = Running("ours", port, os.getpid())
    stand = Stand(engine_itself, engine_itself, proxies=(engine_itself,), absent=(), calls=calls(token), token=token)
    streams = Streams(Size(streams=4, seconds=0.2))
    await streams.round(0, stand)
    assert set(streams.figures) == {STRAIGHT, "ours"}
    ours = streams.figures["ours"]
    assert set(ours.values) == set(report.STREAMS)
    assert (ours.answers.good, ours.answers.bad) == (4, 0)
