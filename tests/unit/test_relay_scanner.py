import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.usage import Usage
from gateway.relay.events import MAX_EVENT_BYTES, Events
from gateway.relay.scanner import Scanner
from tests.transcripts import DONE, capture, chat, chat_role, error_event, event, transcript, usage_event, usage_of

STREAM = b"".join(transcript(" Hé\u2028llo", " \U0001f600", usage=(7, 2)))


class Watch:
    """Events and a scanner, joined as a stream joins them."""

    def __init__(self, *, choices: int = 1, prompts: int = 1) -> None:
        self.events = Events()
        self.told = Scanner(choices=choices, prompts=prompts)
        self.kept = b""

    def feed(self, data: bytes) -> None:
        for one in self.events.feed(data):
            self.kept += one
            self.told.event(one)

    def end(self) -> None:
        if self.events.pending:
            self.told.event(bytes(self.events.pending))


def watched(*pieces: bytes, choices: int = 1, prompts: int = 1) -> Watch:
    watch = Watch(choices=choices, prompts=prompts)
    for piece in pieces:
        watch.feed(piece)
    watch.end()
    assert watch.kept + watch.events.pending == b"".join(pieces)
    return watch


def scanned(*pieces: bytes, choices: int = 1, prompts: int = 1) -> Scanner:
    return watched(*pieces, choices=choices, prompts=prompts).told


def facts(watch: Watch) -> tuple[object, ...]:
    told = watch.told
    return (
        told.began,
        told.content_events,
        told.done,
        told.usage,
        told.error,
        told.complete,
        watch.events.at_boundary,
    )


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_cut_at_every_byte_changes_nothing(ending: bytes, bom: bytes) -> None:
    stream = bom + STREAM.replace(b"\n", ending)
    whole = facts(watched(stream))
    assert whole == (True, 2, True, Usage(prompt=7, completion=2), None, True, True)
    for cut in range(1, len(stream)):
        assert facts(watched(stream[:cut], stream[cut:])) == whole
    assert facts(watched(*(stream[i : i + 1] for i in range(len(stream))))) == whole


def test_a_long_event_in_small_reads_takes_no_longer_for_each() -> None:
    events, long = Events(), b"data: {" + b"x" * 2**22 + b"}\n\n"
    began = time.process_time()
    told = [one for at in range(0, len(long), 1024) for one in events.feed(long[at : at + 1024])]
    assert told == [long]
    assert time.process_time() - began < 5  # 0.03 here; 16 where each read looks at all that came before


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return a stream of events, comments and other fields, every line with an ending of its own."""
    end = st.sampled_from([b"\n", b"\r\n", b"\r"])
    noise = st.sampled_from(
        [b": keep-alive", b"id: 7", b"retry: 10", b"event: x", b":", b"data:", b"nonsense", b"data"]
    )
    text = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)
    events = [chat(draw(text)) for _ in range(draw(st.integers(0, 4)))]
    events += draw(
        st.sampled_from([[], [usage_event(5, 3)], [chat("", finish_reason="stop"), usage_event(5, 3), DONE]])
    )
    lines: list[bytes] = []
    for one in events:
        lines += draw(st.lists(noise, max_size=2))
        payload = one.rstrip(b"\n")
        lines += [payload if draw(st.booleans()) else payload.replace(b"data: ", b"data:", 1), b""]
    return b"".join(line + draw(end) for line in lines)


@given(streams(), st.data())
def test_any_split_of_any_stream_tells_the_same(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream)), max_size=12))})
    pieces = [stream[a:b] for a, b in pairwise(cuts)]
    assert facts(watched(*pieces)) == facts(watched(stream))


@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_survived(junk: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(junk)))
    assert facts(watched(junk[:cut], junk[cut:])) == facts(watched(junk))


@pytest.mark.parametrize(
    ("stream", "complete"),
    [
        (transcript("a", "b"), True),
        (transcript("a", "b")[:-1], True),  # no [DONE], but a finish reason
        ([chat_role(), chat("a")], False),
        ([], False),
        ([chat("a"), error_event(), DONE], False),
    ],
    ids=["done", "finish reason", "cut", "empty", "error"],
)
def test_a_stream_is_complete_by_done_or_by_its_finish_reasons(stream: list[bytes], complete: bool) -> None:
    assert scanned(b"".join(stream)).complete is complete


def test_with_several_choices_each_needs_its_finish_reason() -> None:
    first, second = chat("a", index=0, finish_reason="stop"), chat("b", index=1, finish_reason="length")
    assert not scanned(first, choices=2).complete
    assert scanned(first, second, choices=2).complete


def test_the_last_event_counts_without_its_blank_line() -> None:
    for cut in (0, 1, 2):
        stream = b"".join([chat("a", finish_reason="stop"), usage_event(5, 3)])
        assert scanned(stream[: len(stream) - cut]).usage == Usage(prompt=5, completion=3)


@pytest.mark.parametrize(
    ("sent", "at_boundary"),
    [
        (b"", True),
        (chat("a"), True),
        (chat("a")[:-1], False),
        (chat("a")[:-2], False),
        (b"data: {", False),
        (b"\n\n", True),
    ],
)
def test_it_knows_whether_an_event_is_half_sent(sent: bytes, at_boundary: bool) -> None:
    events = Events()
    events.feed(sent)
    assert events.at_boundary is at_boundary


def test_words_inside_content_fool_nobody() -> None:
    usage, rest = '"usage": {"prompt_tokens": 1, "completion_tokens": 1}', '"error": {"x": 1}, "finish_reason": "stop"'
    told = scanned(chat(f"{{{usage}, {rest}}} data: [DONE]\n\n"))
    assert (told.usage, told.error, told.done, told.complete) == (None, None, False, False)


def test_an_event_beyond_the_bound_is_given_up() -> None:
    events = Events()
    piece = b"x" * 2**20
    for _ in range(MAX_EVENT_BYTES // len(piece) + 2):
        assert events.feed(piece) == []
    assert events.overflowed
    assert not events.at_boundary
    assert events.feed(usage_event(5, 3)) == []


def test_multi_line_data_is_one_event() -> None:
    assert scanned(
        b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n'
    ).usage == Usage(prompt=5, completion=3)


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("vllm/chat_stream_usage", Usage(prompt=19, completion=4)),
        ("vllm/chat_stream_continuous", Usage(prompt=19, completion=3)),
        ("vllm/completions_stream", Usage(prompt=2, completion=3)),
        ("llamacpp/chat_stream_usage", Usage(prompt=36, completion=12)),
    ],
)
def test_captures_of_real_engines(name: str, usage: Usage) -> None:
    _, body = capture(name)
    told = scanned(body)
    assert (told.usage, told.complete, told.done) == (usage, True, True)
    assert told.content_events in {usage.completion, usage.completion - 1}  # the end of text has no event of its own


def test_an_engine_killed_in_the_middle_of_a_stream_says_so() -> None:
    _, body = capture("vllm/engine_kill_midstream")
    told = scanned(body)
    assert told.error is not None
    assert not told.complete


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "content_filter"])
def test_every_finish_reason_counts(finish: str) -> None:
    assert scanned(chat("a", finish_reason=finish)).complete
    assert scanned(event({"choices": [{"index": 0, "finish_reason": finish}]}).replace(b":", b": ")).complete


def test_what_the_engine_broke_off_is_not_complete_whatever_follows() -> None:
    aborted = chat("", finish_reason="abort", usage=usage_of((7, 2)))
    told = scanned(chat("a"), aborted, usage_event(7, 2), DONE)
    assert (told.complete, told.done, told.usage) == (False, True, Usage(prompt=7, completion=2))
    assert not scanned(chat("a", index=1, finish_reason="stop"), aborted, DONE, choices=2).complete


def test_done_behind_nothing_is_no_end_where_the_engine_may_not_have_begun() -> None:
    for events, complete in (([chat_role()], False), ([chat_role(), chat("a")], True)):
        told = Scanner(done_may_lie=True)
        for one in [*events, DONE]:
            told.event(one)
        assert told.complete is complete
    assert scanned(chat_role(), DONE).complete
    assert scanned(chat("a", finish_reason="stop"), DONE, choices=2).complete  # an engine that ignores n


@pytest.mark.parametrize("one", [DONE, error_event(), usage_event(7, 0), b": ping\n\n"])
def test_what_is_not_of_an_answer_is_no_beginning(one: bytes) -> None:
    assert not scanned(one).began
    assert scanned(one, chat_role()).began
    assert scanned(chat_role(), one).began


def test_an_empty_finish_reason_on_running_events_is_none() -> None:
    assert not scanned(chat("a").replace(b'"finish_reason":null', b'"finish_reason":""')).complete  # TGI
