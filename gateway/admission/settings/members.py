"""The members of what operators ask for and a store keeps: names and times out, or the refusal that says what is wrong.

An end is asked for as a duration from now, and kept as a time.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from gateway.calls import strict_json
from gateway.config import units
from gateway.errors import InvalidJson, InvalidValue
from gateway.identity.claims import MAX_NAME_CHARACTERS

# What shall hold for longer has no end.
MAX_FOR_S = 366 * 86_400

_MAX_SHOWN = 60


def only(members: Mapping[str, object], known: tuple[str, ...]) -> None:
    """See that there is none but those known.

    Raises:
        InvalidValue: there is.
    """
    for member in members:
        if member not in known:
            raise InvalidValue(
                f"There is no {shown(member)} here; there are {', '.join(known)}.", param=member[:_MAX_SHOWN]
            )


def name_in(members: Mapping[str, object], member: str) -> str:
    """Return the name that stands in `member`.

    Raises:
        InvalidValue: there is none.
    """
    name = members.get(member)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        expected = f"{member} must be a name of 1 to {MAX_NAME_CHARACTERS} characters"
        raise InvalidValue(f"{expected}, not {shown(name)}." if member in members else f"{expected}.", param=member)
    return name


def end_in(members: Mapping[str, object], *, now_s: float) -> int | None:
    """Return the end, in whole seconds since the epoch, of what is asked `for` so long; None where that has no end.

    What begins now is set at the next whole second, so that no end is earlier than was asked, and none looks later.

    Raises:
        InvalidValue: it is no such duration.
    """
    if "for" not in members:
        return None
    try:
        seconds = units.seconds(members["for"])
    except ValueError:
        seconds = 0
    if not 1 <= seconds <= MAX_FOR_S:
        told = f"for must be a duration from 1s to 366d, such as 30m or 2h, not {shown(members['for'])}."
        raise InvalidValue(told, param="for")
    return math.ceil(now_s) + math.ceil(seconds)


def kept_members(value: bytes) -> dict[str, object]:
    """Return the members of what was kept.

    Raises:
        InvalidValue: it is no JSON object.
    """
    try:
        members = strict_json.loads(value, max_depth=4).value
    except InvalidJson as error:
        raise InvalidValue(error.message) from error
    if not isinstance(members, dict):
        raise InvalidValue("It is not a JSON object.")
    return members


def times(set_at: int, until: int | None) -> dict[str, str]:
    """Return the members that keep two times, of which the end may be none."""
    return {"set_at": iso(set_at)} | ({} if until is None else {"until": iso(until)})


def times_in(members: dict[str, object]) -> tuple[int, int | None]:
    """Take the `times` out of what was kept.

    Raises:
        InvalidValue: they are none, or one is missing.
    """
    if "set_at" not in members:
        raise InvalidValue("set_at is not there.")
    set_at = _seconds("set_at", members.pop("set_at"))
    return set_at, _seconds("until", members.pop("until")) if "until" in members else None


def iso(seconds: int) -> str:
    """Return a time as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(value: object) -> str:
    """Return what somebody gave us in a few printable characters."""
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _seconds(member: str, text: object) -> int:
    with suppress(ValueError, OverflowError):
        seconds = round(datetime.fromisoformat(str(text)).timestamp())
        if iso(seconds) == text:  # in none of ISO 8601's other ways
            return seconds
    raise InvalidValue(f"{member} must be a time such as 2026-11-30T09:00:00Z, not {shown(text)}.", param=member)
