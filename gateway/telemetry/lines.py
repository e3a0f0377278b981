"""Values in, one line out: JSON or `key=value`. Nothing in a value, newlines included, can end the line early.

Values come as JSON tokens and both formats are made of those: a template filled in takes a third of `json.dumps`.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii

from gateway import config

NULL = "null"
# In the place of a field's name: what stands there comes as a `fragment`.
FRAGMENT = ""

_WORD = re.compile(r'"[A-Za-z0-9_./:@+-]+"')

Tokens = tuple[str, ...]


def formatter(logging: config.Logging, *names: str) -> Callable[[Tokens], str]:
    """Return what makes a line, newline included, of one JSON token for each of `names`, as `logging.format` asks."""
    if logging.format == "json":
        template = "{" + _template(names)[1:] + "}\n"
        return lambda tokens: template % tokens
    return lambda tokens: _text(names, tokens)[1:] + "\n"


def fragment(logging: config.Logging, *names: str) -> Callable[[Tokens], str]:
    """Return what makes a part of a line, to be kept where it comes again, for a `formatter` with `FRAGMENT` there."""
    if logging.format == "json":
        template = _template(names)
        return lambda tokens: template % tokens
    return lambda tokens: _text(names, tokens)


def token(value: str | int | None) -> str:
    """Return a field's value as a JSON token."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else quoted(value)


def quoted(text: str | None) -> str:
    """Return a string as a JSON token. It is ASCII: no control character and no lone surrogate gets through raw."""
    return NULL if text is None else encode_basestring_ascii(text)


def time(epoch_s: float) -> str:
    """Return a time as a JSON token of RFC 3339 section 5.6, in UTC with milliseconds: `"2026-11-29T19:30:08.120Z"`."""
    second, millisecond = utc(epoch_s)
    return f'"{second}.{millisecond:03}Z"'


def utc(epoch_s: float) -> tuple[str, int]:
    """Return a time's date and time of day to the second, as `time` spells them, and its milliseconds."""
    milliseconds = int(epoch_s * 1000)
    return _to_second(milliseconds // 1000), milliseconds % 1000


@lru_cache(maxsize=1)
def _to_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().removesuffix("+00:00")


def _template(names: tuple[str, ...]) -> str:
    return "".join("%s" if name == FRAGMENT else f',"{name}":%s' for name in names)


def _text(names: tuple[str, ...], tokens: Tokens) -> str:
    """Leave out what is absent, and the quotes around a single word."""
    pairs = [(name, token) for name, token in zip(names, tokens, strict=True) if token != NULL]
    return "".join(token if name == FRAGMENT else f" {name}={_bare(token)}" for name, token in pairs)


def _bare(token: str) -> str:
    return token[1:-1] if _WORD.fullmatch(token) else token
