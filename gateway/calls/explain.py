"""pydantic's errors -> one refusal in our own words: where, what was expected, and what came instead.

The place is a path as clients write it: `messages[0].content[1].text`.
"""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import BadRequest, InvalidValue, MissingField

EXCERPT = 40  # characters of the client's value that a message repeats

Place = tuple[int | str, ...]

_TYPES = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "a string that is not empty",
    "too_short": "a list that is not empty",
    "too_long": "a list of at most {max_length}",
    "string_pattern_mismatch": "token ids as keys",
    "union_tag_invalid": "a string",
}


@dataclass(frozen=True, slots=True)
class _Fault:
    """One of pydantic's errors. `alternative` is the branch of a union that raised it."""

    place: Place
    alternative: Place
    type: str
    expected: str
    value: Any

    @property
    def missing(self) -> bool:
        return self.type in {"missing", "union_tag_not_found"} or (
            self.value is None and self.type != "float_type" and isinstance(self.place[-1], str)
        )


def explain(error: ValidationError) -> BadRequest:
    """Return the refusal that names the first field that is wrong."""
    faults = [_fault(detail) for detail in error.errors(include_url=False)]
    told = _told([fault for fault in faults if fault.place[0] == faults[0].place[0]])
    path = _path(told[0].place)
    if told[0].missing:
        return MissingField(f"{path} is required.", param=path)
    expected = " or ".join(dict.fromkeys(fault.expected for fault in told))
    return InvalidValue(f"{path}: expected {expected}, got {excerpt(told[0].value)}.", param=path)


def excerpt(value: Any) -> str:
    """Return what `value` is, and it itself where it is short, in ASCII."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**EXCERPT:
        return "a very large integer"
    if isinstance(value, str) and len(value) > EXCERPT:
        return f"{json.dumps(value[:EXCERPT])}..."
    return json.dumps(value)


def _fault(detail: ErrorDetails) -> _Fault:
    place, alternative = _split(detail["loc"])
    kind, value = detail["type"], detail["input"]
    if kind.startswith("union_tag"):
        place, value = (*place, "type"), value.get("type")
    expected = _TYPES.get(kind) or _BOUNDS.get(kind, "another value").format_map(detail.get("ctx", {}))
    return _Fault(place, alternative, kind, expected, value)


def _split(loc: Place) -> tuple[Place, Place]:
    """Return the place in the body, and the alternatives' names that pydantic mixes into it."""
    place: list[int | str] = []
    names: list[int | str] = []
    for element in loc:
        if place == ["logit_bias"]:
            break  # the client's own key comes next
        after_union = place in (["prompt"], ["stop"]) and isinstance(element, str)
        after_item = place[:1] == ["messages"] and isinstance(place[-1], int)
        (names if (after_union and not names) or (after_item and len(names) < len(place) // 2) else place).append(
            element
        )
    return tuple(place), tuple(names[:1])


def _told(faults: list[_Fault]) -> list[_Fault]:
    """Return which faults of one field to tell, one for each alternative.

    The alternative that was meant has a value out of bounds rather than of another type, and was read the furthest.
    Alternatives that stumbled over the same value are told together.
    """
    first: dict[Place, _Fault] = {}
    for fault in faults:
        first.setdefault(fault.alternative, fault)

    def likelihood(fault: _Fault) -> tuple[bool, list[int]]:
        return fault.type in _BOUNDS, [element for element in fault.place if isinstance(element, int)]

    best = max(first.values(), key=likelihood)
    if best.type in _BOUNDS:
        return [best]
    return [fault for fault in first.values() if fault.place == best.place]


def _path(place: Place) -> str:
    path = "".join(f"[{element}]" if isinstance(element, int) else f".{element}" for element in place)
    return path.removeprefix(".")
