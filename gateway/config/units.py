"""Durations ("30s", "100ms", "400d") and sizes ("20MiB") as config.yaml writes them. Strings in, numbers out."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)")


def seconds(text: object) -> float:
    """Return a duration in seconds. ValueError says what was expected."""
    return _quantity(text, _SECONDS, what="a duration", example="500ms, 30s, 5m, 12h or 7d")


def size(text: object) -> int:
    """Return a size in bytes. ValueError says what was expected."""
    return int(_quantity(text, _BYTES, what="a size", example="512KiB or 20MiB"))


def integer(value: object) -> object:
    """Return `value` as an int where it is one in another coat.

    Helm renders an integer of seven digits or more as `1e+06` (helm#6867), which YAML reads as a float or a string.
    Anything else is returned as it came, for the model to refuse.
    """
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _quantity(text: object, units: dict[str, float] | dict[str, int], *, what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match["unit"] not in units:
        raise ValueError(f"expected {what} such as {example}, got {text!r}")
    return float(match["number"]) * units[match["unit"]]
