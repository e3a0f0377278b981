"""Edits change one member of a body and no other byte, however the client spelt it."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.edits import ask_for_usage, rename_model

BLANKS = st.text(" \t\r\n", max_size=2)
# Strings that look like the members to edit, or end like one.
STRINGS = st.text(max_size=6) | st.sampled_from(
    [
        "model",
        "stream_options",
        '"model',
        'x"model',
        '"stream_options',
        '"model":"x"',
        'model":"x',
        '\\"model":',
        "\\",
        '\\"',
        "{",
        "}]",
        '"',
        "m\u00f6del",
        "",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, 1e300, -0.0]) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=10,
)
NAMES = st.text(min_size=1, max_size=8) | st.just("meta-llama/Llama-3.1-8B-Instruct")


@dataclass(frozen=True)
class Spelt:
    """An object as some client may spell it: each member's value stands between two pieces of text."""

    members: dict[str, tuple[str, str]]  # by name: what leads to the value, and the value
    before: str
    after: str

    def text(self, **changed: str) -> str:
        """The object, with the text of some values changed."""
        values = {name: value for name, (_, value) in self.members.items()} | changed
        inside = "".join(lead + values[name] for name, (lead, _) in self.members.items())
        return self.before + inside + self.after


@st.composite
def spelt_string(draw: st.DrawFn, text: str) -> str:
    letters = []
    for letter in text:
        choices = [json.dumps(letter)[1:-1], json.dumps(letter, ensure_ascii=False)[1:-1]]
        if ord(letter) < 0x10000:
            choices += [f"\\u{ord(letter):04x}", f"\\u{ord(letter):04X}"]
        letters.append(draw(st.sampled_from(choices)))
    return '"' + "".join(letters) + '"'


@st.composite
def spelt_object(draw: st.DrawFn, value: dict[str, Any]) -> Spelt:
    members = {}
    for number, (name, inner) in enumerate(value.items()):
        key = draw(spelt_string(name)) if draw(st.booleans()) else json.dumps(name)
        comma = draw(BLANKS) + "," if number else ""
        members[name] = f"{comma}{draw(BLANKS)}{key}{draw(BLANKS)}:{draw(BLANKS)}", draw(spelt_value(inner))
    return Spelt(members, draw(BLANKS) + "{", draw(BLANKS) + "}" + draw(BLANKS))


@st.composite
def spelt_value(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, str):
        return draw(spelt_string(value))
    if isinstance(value, dict):
        return draw(spelt_object(value)).text().strip()
    if isinstance(value, list):
        items = [draw(BLANKS) + draw(spelt_value(item)) + draw(BLANKS) for item in value]
        return f"[{','.join(items) or draw(BLANKS)}]"
    return json.dumps(value)


@st.composite
def bodies(draw: st.DrawFn, *required: str) -> dict[str, Any]:
    known: dict[str, st.SearchStrategy[Any]] = {
        "model": NAMES,
        "stream": st.just(value=True),
        "messages": VALUES,
        "stream_option": VALUES,
        "mode": VALUES,
    }
    fields = draw(st.dictionaries(STRINGS.filter(lambda name: name != "stream_options"), VALUES, max_size=3))
    for name in draw(st.sets(st.sampled_from(sorted(known)))) | set(required):
        fields[name] = draw(known[name])
    return {name: fields[name] for name in draw(st.permutations(list(fields)))}


@st.composite
def stream_options(draw: st.DrawFn) -> dict[str, Any]:
    options = draw(st.dictionaries(STRINGS, VALUES, max_size=2))
    for name in draw(st.sets(st.sampled_from(["include_usage", "continuous_usage_stats"]))):
        options[name] = draw(st.booleans())
    return {name: options[name] for name in draw(st.permutations(list(options)))}


@given(st.data(), bodies("model"), NAMES)
def test_only_the_models_name_changes(data: st.DataObject, fields: dict[str, Any], served_name: str) -> None:
    spelt = data.draw(spelt_object(fields))
    result = rename_model(spelt.text().encode(), served_name)
    assert result.decode() == spelt.text(model=json.dumps(served_name))
    assert json.loads(result) == fields | {"model": served_name}


USAGE: dict[bool, dict[str, bool]] = {
    False: {"include_usage": True},
    True: {"include_usage": True, "continuous_usage_stats": True},
}


@given(data=st.data(), fields=bodies(), continuous=st.booleans())
def test_stream_options_that_are_absent_go_first(
    *, data: st.DataObject, fields: dict[str, Any], continuous: bool
) -> None:
    spelt = data.draw(spelt_object(fields))
    text = spelt.text()
    result = ask_for_usage(text.encode(), continuous=continuous).decode()
    assert json.loads(result) == {"stream_options": USAGE[continuous]} | fields
    assert result.startswith(spelt.before)
    assert result.endswith(text.removeprefix(spelt.before))


@given(data=st.data(), fields=bodies(), continuous=st.booleans())
def test_stream_options_that_are_null_are_replaced(
    *, data: st.DataObject, fields: dict[str, Any], continuous: bool
) -> None:
    spelt = data.draw(spelt_object(fields | {"stream_options": None}))
    result = ask_for_usage(spelt.text().encode(), continuous=continuous).decode()
    usage = json.dumps(USAGE[continuous], separators=(",", ":"))
    assert result == spelt.text(stream_options=usage)


@given(data=st.data(), fields=bodies(), options=stream_options(), continuous=st.booleans())
def test_stream_options_keep_what_else_they_hold(
    *, data: st.DataObject, fields: dict[str, Any], options: dict[str, Any], continuous: bool
) -> None:
    spelt = data.draw(spelt_object(fields | {"stream_options": options}))
    inner = data.draw(spelt_object(options))
    body = spelt.text(stream_options=inner.text().strip())
    result = ask_for_usage(body.encode(), continuous=continuous).decode()
    assert json.loads(result) == fields | {"stream_options": options | USAGE[continuous]}
    start = len(spelt.text(stream_options="\0").partition("\0")[0])
    assert result[:start] == body[:start]
    changed = result[start : len(result) - (len(body) - start - len(inner.text().strip()))]
    assert spelt.text(stream_options=changed) == result
    kept = inner.text(**{name: "true" for name in USAGE[continuous] if name in options})
    assert changed.endswith(kept.strip().removeprefix("{"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{"x\\"model":1,"model":"a"}', b'{"x\\"model":1,"model":"new"}'),
        (rb'{"\u006Dod\u0065l" : "a\"}", "x":1}', b'{"\\u006Dod\\u0065l" : "new", "x":1}'),
        (
            b'{"messages":[{"content":"\\"model\\":\\"a\\"","model":"a"}],"model":"a"}',
            b'{"messages":[{"content":"\\"model\\":\\"a\\"","model":"a"}],"model":"new"}',
        ),
        (b'{"x":"model","model":"a","y":{"model":"a"}}', b'{"x":"model","model":"new","y":{"model":"a"}}'),
        (b'{"x":{"y":[{"model":[]}]},"model":"a"}', b'{"x":{"y":[{"model":[]}]},"model":"new"}'),
    ],
)
def test_a_model_is_renamed_where_it_counts(body: bytes, expected: bytes) -> None:
    assert rename_model(body, "new") == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (b'{"include_usage":true}', b'{"include_usage":true}'),
        (b'{ "include_usage" : false }', b'{ "include_usage" : true }'),
        (b'{"include\\u005fusage":false,"x":1e2}', b'{"include\\u005fusage":true,"x":1e2}'),
        (b"{ }", b'{"include_usage":true }'),
        (b'{"x":{"include_usage":0}}', b'{"include_usage":true,"x":{"include_usage":0}}'),
        (b"null", b'{"include_usage":true}'),
    ],
)
def test_usage_is_asked_for_in_place(options: bytes, expected: bytes) -> None:
    for key in (b"stream_options", rb"stream\u005foptions", rb"\u0073tream_option\u0073"):
        body = b'{"stream":true,"%b":%b,"n":1}'
        assert ask_for_usage(body % (key, options), continuous=False) == body % (key, expected)


@pytest.mark.parametrize(
    "layout",
    ['{"model":"a","x":[%s],"y":[%s]}', '{"x":[%s],"model":"a","y":[%s]}', '{"x":[%s],"y":[%s],"model":"a"}'],
    ids=["first", "middle", "last"],
)
def test_very_many_keys_of_that_name_take_linear_time(layout: str) -> None:
    nested = ",".join([r'{"model":{"stream_options":"{[\\"}}'] * 30_000)
    body = layout % (nested, nested)
    started = time.process_time()
    asked = ask_for_usage(rename_model(body.encode(), "new"), continuous=True)
    assert time.process_time() - started < 5
    assert json.loads(asked) == json.loads(body) | {"model": "new", "stream_options": USAGE[True]}
