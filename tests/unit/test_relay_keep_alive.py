"""Where a comment may stand in a stream: where it is read as one, however the stream is written and cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.events import MAX_EVENT_BYTES
from gateway.relay.keep_alive import COMMENT
from gateway.relay.stream import Stream
from gateway.relay.unasked import Unasked, asking
from tests.event_source import data_of
from tests.transcripts import DONE, chat, transcript
from tests.unit.test_relay_unasked import call_of, replica_of

PIECES = [
    "data: {}", "data:", "data", 'data: {"a":"b"}', ": ping", "event: message", "id: 1", "retry: 9", "\n", "\r\n", "\r",
]  # fmt: skip
written = st.lists(st.sampled_from([*PIECES, "\n", "\n\n", "\r\n\r\n", "\r\r"]), max_size=20).map("".join)


def commented(stream: Stream, reads: list[bytes]) -> tuple[bytes, int]:
    """Return what a client gets that is sent a comment wherever one may stand, and how many that were."""
    got, comments = b"", 0
    for read in reads:
        got += stream.feed(read)
        if stream.between_events:
            got += COMMENT
            comments += 1
    return got, comments


@given(written, st.lists(st.integers(0, 200), max_size=10))
def test_a_comment_changes_nothing_that_is_said(text: str, cuts: list[int]) -> None:
    sent = text.encode()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    reads = [sent[start:end] for start, end in pairwise(bounds)]
    got, _ = commented(Stream(call_of(), engine="openai"), reads)
    assert data_of(got) == data_of(sent)
    assert got.replace(COMMENT, b"") == sent


def test_between_whole_events_there_is_always_room_until_the_last() -> None:
    *events, last = transcript("a", "b", "c")
    for engine in ("openai", "vllm", "sglang"):
        call, replica = call_of(), replica_of(engine)
        asked = asking(call, engine, replica)
        assert asked
        stream = Stream(call, engine=engine, unasked=Unasked(asked, call, engine, replica))
        assert commented(stream, events)[1] == len(events)
        assert commented(stream, [last])[1] == 0
        assert last == DONE


def test_where_usage_is_taken_out_there_is_room_also_while_an_event_is_half_here() -> None:
    call, replica = call_of(), replica_of("vllm")
    asked = asking(call, "vllm", replica)
    assert asked
    stream = Stream(call, engine="vllm", unasked=Unasked(asked, call, "vllm", replica))
    event = chat("a")
    got, comments = commented(stream, [event[:30], event[30:]])
    assert (got, comments) == (COMMENT + event + COMMENT, 2)


def test_an_event_too_large_to_be_read_is_never_interrupted() -> None:
    stream = Stream(call_of(), engine="openai")
    large = b"data: " + b"x" * MAX_EVENT_BYTES
    assert commented(stream, [large, b"x", b"\n\n", b"data: {}\n\n"])[1] == 0
