"""Strict JSON: what one reader and another could take for different things is refused."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.strict_json import MAX_CONTAINERS, brackets_outside_strings, loads
from gateway.errors import InvalidJson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b'{"model":"m"',
        b'{"model":"m"} x',
        b'{"model":"m"}{}',
        b'{"model":"m",}',
        b"{'model':'m'}",
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'{"a":"\x01"}',
        b'{/**/"a":1}',
        b"model=m&prompt=Hi",
        b'{"a":"\xff"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":"\xed\xa0\x80"}',
        rb'{"a":"\ud800"}',
        rb'{"\udc00":1}',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-32"),
        b'{"a":NaN}',
        b'{"a":{"b":[Infinity]}}',
        b'{"a":-Infinity}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b'{"model":"small","model":"big"}',
        rb'{"model":"small","\u006dodel":"big"}',
        rb'{"mod\u0065l":"small","\u006Dodel":"big"}',
        b'{"tools":[{"function":{"parameters":{"type":"object","type":"array"}}}]}',
    ],
)
def test_a_body_that_readers_could_differ_on_is_invalid_json_at_once(body: bytes) -> None:
    started = time.process_time()
    with pytest.raises(InvalidJson) as refused:
        loads(body, max_depth=64)
    assert time.process_time() - started < 0.1
    assert refused.value.message.isascii()
    assert len(refused.value.message) < 300
    assert "Error" not in refused.value.message


def test_the_refusal_says_where_and_names_a_duplicate_key() -> None:
    with pytest.raises(InvalidJson, match=r'duplicate key "model" at line 2 column 9'):
        loads(b'{"model":1,\n"model":2}', max_depth=64)


def test_the_refusal_repeats_no_long_key() -> None:
    key = "k" * 10_000
    with pytest.raises(InvalidJson) as refused:
        loads(f'{{"{key}":1,"{key}":2}}'.encode(), max_depth=64)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    "body",
    [
        b'{"Model":1,"model":2}',
        b'{"a":{"x":1},"b":{"x":1}}',
        b'{"a":0.1000000000000000055,"b":12345678901234567890123456789,"c":1e-400,"d":1e308}',
        '{"a":"Grüße, \u2028 \U0001f600"}'.encode(),
        rb'{"a":"Gr\u00fc\u00dfe \ud83d\ude00 1e400 NaN"}',
        b' \t\r\n{"a" : [ ] }\n',
    ],
)
def test_odd_but_unambiguous_bodies_are_read(body: bytes) -> None:
    assert loads(body, max_depth=64).value == json.loads(body)


@pytest.mark.parametrize(
    ("number", "value"), [(b"1e400", math.inf), (b"-1E+999", -math.inf), (b"9" * 400 + b".5", math.inf)]
)
def test_a_number_beyond_every_double_is_infinite(number: bytes, value: float) -> None:
    assert loads(b'{"a":[%b]}' % number, max_depth=64).value == {"a": [value]}


@pytest.mark.parametrize("limit", [1, 64, 128])
def test_nesting_is_allowed_to_the_limit_and_not_beyond(limit: int) -> None:
    assert depth(loads(nested(limit), max_depth=limit).value) == limit
    with pytest.raises(InvalidJson, match=f"more than {limit} levels"):
        loads(nested(limit + 1), max_depth=limit)


def test_lists_and_objects_are_counted_outside_strings() -> None:
    many = b",".join([b"[]"] * (MAX_CONTAINERS - 1))
    text = b'"' + b"{[" * MAX_CONTAINERS + b'"'
    assert len(loads(b"[%b,%b]" % (many, text), max_depth=64).value) == MAX_CONTAINERS
    started = time.process_time()
    with pytest.raises(InvalidJson, match="more than 100000 lists and objects"):
        loads(b"[%b,{}]" % b",".join([many] * 60), max_depth=64)
    assert time.process_time() - started < 2  # reading 18 MB of this takes longer


def test_brackets_in_strings_neither_count_nor_hide_depth() -> None:
    text = json.dumps({"content": '{[\\"' * 1000, '"}': ["]]]", "\\"]})
    assert loads(text.encode(), max_depth=2).value == json.loads(text)
    hidden = b'{"}":' * 65 + b"0" + b',"{":0}' * 65
    with pytest.raises(InvalidJson, match="more than 64 levels"):
        loads(hidden, max_depth=64)


@given(value=VALUES, limit=st.integers(1, 4), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_what_python_writes_is_read_back_if_it_is_shallow_enough(
    *, value: Any, limit: int, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    if depth(value) > limit:
        with pytest.raises(InvalidJson):
            loads(body, max_depth=limit)
    else:
        assert loads(body, max_depth=limit).value == value


@given(VALUES)
def test_brackets_outside_strings_are_those_that_stay_when_strings_are_emptied(value: Any) -> None:
    def emptied(value: Any) -> Any:
        if isinstance(value, dict):
            return [item for inner in value.values() for item in ("", emptied(inner))]
        if isinstance(value, list):
            return [emptied(item) for item in value]
        return "" if isinstance(value, str) else value

    merged = brackets_outside_strings(json.dumps(value).encode()).replace(b"{", b"[").replace(b"}", b"]")
    assert merged.decode() == "".join(letter for letter in json.dumps(emptied(value)) if letter in "[]")
