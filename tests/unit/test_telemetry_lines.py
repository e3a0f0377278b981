import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.telemetry.lines import FRAGMENT, NULL, formatter, fragment, quoted, time, token

ANY_TEXT = st.text(st.characters())  # lone surrogates, controls and line separators included


@given(ANY_TEXT)
def test_json_keeps_any_text_on_one_ascii_line(text: str) -> None:
    line = formatter(config.Logging(), "a", "b")((quoted(text), "1"))
    assert line.isascii()
    assert line.splitlines() == [line[:-1]]
    assert json.loads(line) == {"a": text, "b": 1}


@given(ANY_TEXT)
def test_text_keeps_any_text_on_one_ascii_line_with_the_next_field_intact(text: str) -> None:
    line = formatter(config.Logging(format="text"), "a", "b")((quoted(text), "1"))
    assert line.isascii()
    assert line.splitlines() == [line[:-1]]
    value = line.removeprefix("a=").removesuffix(" b=1\n")
    assert (json.loads(value) if value.startswith('"') else value) == text
    assert value.startswith('"') or " " not in value


@pytest.mark.parametrize("spelling", ["json", "text"])
@given(ANY_TEXT)
def test_a_line_made_with_a_fragment_is_the_line_made_at_once(spelling: Literal["json", "text"], text: str) -> None:
    logging = config.Logging(format=spelling)
    part = fragment(logging, "b", "c", "d")((quoted(text), NULL, token(True)))
    with_fragment = formatter(logging, "a", FRAGMENT, "e")((token(None), part, token(1)))
    at_once = formatter(logging, "a", "b", "c", "d", "e")((NULL, quoted(text), NULL, "true", "1"))
    assert with_fragment == at_once


def test_text_leaves_out_what_is_absent_and_the_quotes_of_single_words() -> None:
    line = formatter(config.Logging(format="text"), "a", "b", "c", "d")
    assert line((quoted("10.0.0.1:80"), NULL, quoted("two words"), "true")) == 'a=10.0.0.1:80 c="two words" d=true\n'


def test_times_are_utc_with_milliseconds_also_across_seconds() -> None:
    times = [time(epoch_s) for epoch_s in (0.0, 1_796_000_000.1239, 1_796_000_000.9999, 1_796_000_001.0)]
    assert times == [
        '"1970-01-01T00:00:00.000Z"',
        '"2026-11-30T00:53:20.123Z"',
        '"2026-11-30T00:53:20.999Z"',
        '"2026-11-30T00:53:21.000Z"',
    ]
