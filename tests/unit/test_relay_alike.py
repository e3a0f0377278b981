"""What is taken for alike is: one whole event, equal to the one before but for its text and its running total."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.relay.alike import Alike
from tests.transcripts import chat, completion

USAGE = b',"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":9}'
TOTAL = re.compile(rb'(,"usage":\{[^}\r\n]*\})?\}\n\n')  # what it says is not read
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ['"', "\\", '\\"', '"}', '"}}]}', ',"usage":{', "}\n\n", "\r", '"},"finish_reason":null}]', "\u2028"]
)


def with_usage(event: bytes, completion_tokens: int) -> bytes:
    return event[: -len(b"}\n\n")] + USAGE % completion_tokens + b"}\n\n"


def said(event: bytes) -> Any:
    """Return what an event without a running total says besides its text; fail if it is not one event."""
    assert event.count(b"\n") == 2
    assert event.endswith(b"\n\n")
    document = json.loads(event.removeprefix(b"data: "))
    choice = document["choices"][0]
    assert choice.get("text") or choice["delta"]["content"]
    choice.pop("text", None)
    choice.get("delta", {}).pop("content", None)
    return document


@pytest.mark.parametrize("event", [chat, completion])
@given(first=texts, second=texts)
def test_the_next_event_is_told_from_the_first_and_where_its_total_stands(event: Any, first: str, second: str) -> None:
    alike = Alike()
    assert alike.end(event(first)) == 0
    alike.learn(with_usage(event(first), 1))
    for data in (event(second), with_usage(event(second), 2), with_usage(event(second), 3)):
        end = alike.end(data)
        if end:  # a text may hold what looks like its end: then nothing is told
            assert data[:end] + b"}\n\n" == event(second)
    if '"' not in second and not second.endswith("\\"):
        assert alike.end(event(second)) == len(event(second)) - 3
    alike.forget()
    assert alike.end(event(second)) == 0


@example(first="0", pieces=[("0", 0, 258), ("0", 209, 0)], glue=b"")  # a total torn amid its words
@given(
    first=texts,
    pieces=st.lists(st.tuples(texts, st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=3),
    glue=st.sampled_from([b"", b"\n", b"\r", b"}", b'"', b"\n\n", b'"error":1', b'"finish_reason":"stop"']),
)
def test_whatever_comes_what_is_told_is_one_event_that_says_the_same(
    first: str, pieces: list[tuple[str, int, int]], glue: bytes
) -> None:
    alike = Alike()
    alike.learn(chat(first))
    data = glue.join(with_usage(chat(text), 5)[start:][: stop or None] for text, start, stop in pieces)
    for candidate in (data, chat(first)[: len(data) // 2] + data, data + chat(first)):
        if end := alike.end(candidate):
            assert said(candidate[:end] + b"}\n\n") == said(chat(first))
            assert TOTAL.fullmatch(candidate[end:])


def test_a_stream_whose_events_never_repeat_is_soon_left_alone() -> None:
    alike = Alike()
    for created in range(100):
        event = chat("a").replace(b'"created":', b'"created":%d' % (created + 1))
        alike.learn(event)
    assert alike.end(event) == 0
