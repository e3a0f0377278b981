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

_WORD = re.compile(r'"[A-Za-z0-9_./:@+-]+"')


def formatter(logging: config.Logging, *names: str) -> Callable[[tuple[str, ...]], str]:
    """Return what makes a line, newline included, of one JSON token for each of `names`, as `logging.format` asks."""
    if logging.format == "json":
        template = "{" + ",".join(f'"{name}":%s' for name in names) + "}\n"
        return lambda tokens: template % tokens
    return lambda tokens: _text(names, tokens)


def quoted(text: str | None) -> str:
    """Return a string as a JSON token. It is ASCII: no control character and no lone surrogate gets through raw."""
    return NULL if text is None else encode_basestring_ascii(text)


def time(epoch_s: float) -> str:
    """Return a time as a JSON token of RFC 3339 section 5.6, in UTC with milliseconds: `"2026-11-29T19:30:08.120Z"`."""
    second, millisecond = divmod(int(epoch_s * 1000), 1000)
    return f'"{_to_second(second)}.{millisecond:03}Z"'


@lru_cache(maxsize=1)
def _to_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().removesuffix("+00:00")


def _text(names: tuple[str, ...], tokens: tuple[str, ...]) -> str:
    """Leave out what is absent, and the quotes around a single word."""
    pairs = zip(names, tokens, strict=True)
    return " ".join(f"{name}={_bare(token)}" for name, token in pairs if token != NULL) + "\n"


def _bare(token: str) -> str:
    return token[1:-1] if _WORD.fullmatch(token) else token
