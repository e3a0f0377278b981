"""A JMESPath expression -> what finds its value in claims. Says what jmespath says, and sooner where that is easy.

Most expressions are a claim's name, a path of names, or several of them with `||`: those are followed here, by the tree
that jmespath parsed. All others are jmespath's own to search.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import jmespath

Search = Callable[[Any], Any]
"""Returns what there is in claims, None where there is nothing; or raises what jmespath does."""

# What `||` passes over, besides false.
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def compiled(expression: str) -> Search:
    """Return the search for a valid expression."""
    whole = jmespath.compile(expression)
    return _direct(whole.parsed) or whole.search


def _direct(node: Mapping[str, Any]) -> Search | None:
    """Return a search that jmespath is not needed for; None where it is."""
    if node["type"] == "field":
        return _field(node["value"])
    if node["type"] not in {"subexpression", "or_expression"}:
        return None
    parts = [_direct(part) for part in node["children"]]
    direct = [part for part in parts if part is not None]
    if len(direct) < len(parts):
        return None
    return reduce(_either if node["type"] == "or_expression" else _within, direct)


def _field(name: str) -> Search:
    return lambda value: value.get(name) if isinstance(value, dict) else None


def _within(outer: Search, inner: Search) -> Search:
    return lambda value: inner(outer(value))


def _either(first: Search, second: Search) -> Search:
    def search(value: Any) -> Any:
        found = first(value)
        return second(value) if found is False or found in _NOTHING else found

    return search
