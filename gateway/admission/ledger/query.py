"""What somebody asks of the ledger: parameters as text in, a `Query` or the refusal that says which is wrong out."""

from calendar import monthrange
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Literal

from gateway.errors import InvalidValue

Column = Literal["day", "tenant", "key", "model"]

# What a tenant may group its own usage by, and what operators may; and by what they do where they do not say.
TENANTS: tuple[Column, ...] = ("day", "key", "model")
OPERATORS: tuple[Column, ...] = ("day", "tenant", "key", "model")
TENANTS_DEFAULT, OPERATORS_DEFAULT = TENANTS[:1], OPERATORS[:2]

# Each day is a read of the store.
MAX_DAYS = 366

_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Query:
    """Days from `since` to `until`, both included, of one tenant or of all, added up by `group_by`."""

    tenant: str | None
    since: date
    until: date
    group_by: tuple[Column, ...]


def of_tenant(tenant: str, parameters: Iterable[tuple[str, str]], *, today: date) -> Query:
    """Return what a tenant asks of its own usage. Without parameters: this month's days.

    Raises:
        InvalidValue: a parameter is unknown, stands twice, or has no such value; `param` is its name.
    """
    given = _once(parameters, ("since", "until", "group_by"))
    since, until = _days(given, today)
    return Query(tenant, since, until, _columns(given, TENANTS, TENANTS_DEFAULT))


def of_operator(parameters: Iterable[tuple[str, str]], *, today: date) -> Query:
    """Return what an operator asks, of one `tenant` or of all. Without parameters: this month, by day and tenant.

    Raises:
        InvalidValue: as `of_tenant`.
    """
    given = _once(parameters, ("tenant", "since", "until", "group_by"))
    since, until = _days(given, today)
    return Query(given.get("tenant"), since, until, _columns(given, OPERATORS, OPERATORS_DEFAULT))


def _once(parameters: Iterable[tuple[str, str]], known: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parameters:
        if name not in known:
            raise InvalidValue(
                f"There is no parameter {_shown(name)}; there are {', '.join(known)}.", param=name[:_MAX_SHOWN]
            )
        if name in given:
            raise InvalidValue(f"{name} stands twice; send it once.", param=name)
        given[name] = value
    return given


def _days(given: dict[str, str], today: date) -> tuple[date, date]:
    """Return since and until. A month is meant where only one of them, or none, is given."""
    until = _day(given, "until") or today.replace(day=monthrange(today.year, today.month)[1])
    since = _day(given, "since") or until.replace(day=1)
    if since > until:
        advice = "swap them" if "until" in given else "send until too"
        raise InvalidValue(f"since, {since}, is later than until, {until}; {advice}.", param="since")
    if (until - since).days >= MAX_DAYS:
        raise InvalidValue(f"since and until are more than {MAX_DAYS} days apart; ask for less at once.", param="since")
    return since, until


def _day(given: dict[str, str], name: str) -> date | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.max
    if str(day) != text or day == date.max:  # as it stands here, in no other of ISO 8601's ways
        raise InvalidValue(f"{name} must be a day such as 2026-11-30, not {_shown(text)}.", param=name)
    return day


def _columns(given: dict[str, str], known: tuple[Column, ...], default: tuple[Column, ...]) -> tuple[Column, ...]:
    text = given.get("group_by")
    if text is None:
        return default
    names = text.split(",")
    columns = tuple([column for name in names for column in known if column == name])
    if len(columns) != len(names) or len(set(columns)) != len(columns):
        expected = f"each of {', '.join(known)} at most once, with commas between"
        raise InvalidValue(f"group_by must hold {expected}, not {_shown(text)}.", param="group_by")
    return columns


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
