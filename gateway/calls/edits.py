"""The few edits made for the engine: top-level members of a valid body changed in place, every other byte as it came.

Takes bodies that `parse` accepted: valid JSON objects without duplicate keys. Nothing is re-encoded, so numbers,
escapes, white space and the order of keys reach the engine as the client wrote them.
"""

import json
import re
from functools import cache

from gateway.calls.strict_json import brackets_outside_strings

_BLANK = rb"[ \t\n\r]*"
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]')
_ATOM = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^"\[\]{},\s]+')
_EMPTY_OBJECT = re.compile(rb"\{" + _BLANK + rb"\}")
_OPENERS, _CLOSERS = b"{[", b"}]"

_USAGE = b'{"include_usage":true}'
_RUNNING_USAGE = b'{"include_usage":true,"continuous_usage_stats":true}'


def rename_model(body: bytes, served_name: str) -> bytes:
    """Return `body` with `served_name` as its model."""
    return _put(body, "model", json.dumps(served_name).encode())


def ask_for_usage(body: bytes, *, continuous: bool) -> bytes:
    """Return `body` asking for usage at the end of the stream, and for running totals too where `continuous`.

    The client's other stream options stay as they are.
    """
    usage = _RUNNING_USAGE if continuous else _USAGE
    span = _find(body, "stream_options")
    if span is None:
        return _insert(body, "stream_options", usage)
    options = body[span[0] : span[1]]
    if options == b"null":
        return _replace(body, span, usage)
    options = _put(options, "include_usage", b"true")
    return _replace(body, span, _put(options, "continuous_usage_stats", b"true") if continuous else options)


_Span = tuple[int, int]


def _put(text: bytes, name: str, value: bytes) -> bytes:
    """Return the object `text` with its member `name` set to `value`."""
    span = _find(text, name)
    return _insert(text, name, value) if span is None else _replace(text, span, value)


def _replace(text: bytes, span: _Span, value: bytes) -> bytes:
    return text[: span[0]] + value + text[span[1] :]


def _insert(text: bytes, name: str, value: bytes) -> bytes:
    """Return the object `text` with a new first member."""
    start = text.index(b"{") + 1
    comma = b"" if _EMPTY_OBJECT.match(text, start - 1) else b","
    return b'%b"%b":%b%b%b' % (text[:start], name.encode(), value, comma, text[start:])


def _find(text: bytes, name: str) -> _Span | None:
    """Return where the value of the member `name` of the object `text` stands, None where it has no such member.

    Candidates are keys of that name at any depth. The brackets between one and the nearer end of the text tell how
    deep it stands, and each stretch of text is looked at once.
    """
    keys = _keys(text, name)
    if not keys:
        return None
    backwards = len(text) - keys[-1].end() < keys[0].start()
    depth, passed = 0, len(text) if backwards else 0
    for key in reversed(keys) if backwards else keys:
        if backwards:
            depth -= _opened(text[key.end() : passed])
        else:
            depth += _opened(text[passed : key.start()])
        if depth == 1:
            return key.end(), _end_of_value(text, key.end())
        passed = key.end() if backwards else key.start()
    return None


def _keys(text: bytes, name: str) -> list[re.Match[bytes]]:
    """Return the keys `name` at any depth, each with its colon."""
    pattern = _key(name)
    # From the end: rfind skips through text that find goes through in steps, and takes a quarter of the time.
    if text.rfind(rb"\u00") >= 0:
        return list(pattern.finditer(text))
    plain = b'"%b"' % name.encode()
    keys = []
    at = text.rfind(plain)
    while at >= 0:
        if key := pattern.match(text, at):
            keys.append(key)
        at = text.rfind(plain, 0, at + 1)
    return keys[::-1]


@cache
def _key(name: str) -> re.Pattern[bytes]:
    r"""Return what matches the key `name` and its colon, each letter as itself or as `\u00xx`.

    A quote without a backslash before it, and with a letter or a backslash behind it, opens a string: one that closes
    a string has white space, a comma, a colon or a bracket behind it. So no match is a piece of a longer string.
    """
    letters = (rb"(?:%c|\\u00(?i:%02x))" % (letter, letter) for letter in name.encode())
    return re.compile(rb'"(?<!\\")' + b"".join(letters) + b'"' + _BLANK + b":" + _BLANK)


def _opened(text: bytes) -> int:
    """Return how many more brackets open than close in a piece of JSON that starts and ends outside strings."""
    brackets = brackets_outside_strings(text)
    return sum(map(brackets.count, _OPENERS)) - sum(map(brackets.count, _CLOSERS))


def _end_of_value(text: bytes, start: int) -> int:
    if text[start] not in _OPENERS:
        atom = _ATOM.match(text, start)
        assert atom is not None, "valid JSON has a value after a colon"
        return atom.end()
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start):
        first = token[0][0]
        depth += (first in _OPENERS) - (first in _CLOSERS)
        if depth == 0:
            return token.end()
    raise AssertionError("valid JSON closes what it opens")
