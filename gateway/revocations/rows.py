"""Entries in, rows for whoever looks at them out: as JSON has them, and as text."""

from collections.abc import Iterable, Iterator
from typing import Any

from gateway.admission.settings.entry import Entry, state_of
from gateway.admission.settings.members import iso
from gateway.revocations.revocation import Revocation

COLUMNS = ("tenant", "key", "jti", "reason", "set_at", "until", "state")


def rows(entries: Iterable[Entry[Revocation]], *, tenant: str | None, now_s: float) -> Iterator[dict[str, Any]]:
    """Yield those of a tenant, or all, in order, with whether each is in force, and if not, why.

    Whose an unreadable one is, nobody knows: it is shown with all only.
    """
    for entry in sorted(entries, key=_order):
        one = entry.setting
        if tenant is not None and (one is None or one.tenant != tenant):
            continue
        if one is None:
            row: dict[str, Any] = {"name": entry.name}
        else:
            said = {"tenant": one.tenant, "key": one.key, "jti": one.jti, "reason": one.reason}
            row = {name: value for name, value in said.items() if value is not None}
            row |= {"set_at": iso(one.set_at), "until": None if one.until is None else iso(one.until)}
        yield row | entry.standing(now_s)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what a table shows of a row, under `COLUMNS`."""
    state = state_of(row)
    if "name" in row:
        return row["name"], "", "", "", "", "", state
    key = row.get("key") or ("" if "jti" in row else "(all)")
    return row["tenant"], key, row.get("jti") or "", row.get("reason") or "", row["set_at"], row["until"] or "", state


def _order(entry: Entry[Revocation]) -> tuple[str, str, str]:
    one = entry.setting
    return (entry.name, "", "") if one is None else (one.tenant, one.key or "", one.jti or "")
