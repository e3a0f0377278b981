"""Entries in, rows for whoever looks at them out: as JSON has them, and as text."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gateway.admission.overrides.override import Override
from gateway.admission.settings.entry import Entry, state_of
from gateway.admission.settings.members import iso

COLUMNS = ("tenant", "key", "rule", "change", "set_at", "until", "state")


class Which(NamedTuple):
    """Which entries are asked for: of all tenants or of one, of all its keys or of one."""

    tenant: str | None = None
    key: str | None = None

    def of(self, entry: Entry[Override]) -> bool:
        """Whether `entry` is one. Whose an unreadable one is, nobody knows: it is one of everybody's."""
        override = entry.setting
        if override is None:
            return self.tenant is None
        return self.tenant in {None, override.tenant} and self.key in {None, override.key}


def rows(entries: Iterable[Entry[Override]], which: Which, *, now_s: float) -> Iterator[dict[str, Any]]:
    """Yield `which` are asked for, in order, with whether each is in force, and if not, why."""
    for entry in sorted(filter(which.of, entries), key=_order):
        override = entry.setting
        if override is None:
            row: dict[str, Any] = {"name": entry.name}
        else:
            whose = {"tenant": override.tenant, "key": override.key, "rule": override.rule}
            times = {"set_at": iso(override.set_at), "until": None if override.until is None else iso(override.until)}
            row = {name: value for name, value in whose.items() if value is not None} | override.members | times
        yield row | entry.standing(now_s)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what a table shows of a row, under `COLUMNS`."""
    changes = [
        f"{name} {_word(row[name])}" for name in ("plan", "requests", "tokens", "concurrent", "shadow") if name in row
    ]
    state = state_of(row)
    if "name" in row:
        return row["name"], "", "", "", "", "", state
    whose = row["tenant"], row.get("key") or "(all)", row.get("rule") or "(plan)"
    return *whose, ", ".join(changes), row["set_at"], row["until"] or "", state


def said(override: Override) -> str:
    """Return what an override changes, for a line of the log."""
    changes = ", ".join(f"{name} {_word(value)}" for name, value in override.members.items())
    return changes if override.until is None else f"{changes} until {iso(override.until)}"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _order(entry: Entry[Override]) -> tuple[str, str, str]:
    override = entry.setting
    return (entry.name, "", "") if override is None else (override.tenant, override.key or "", override.rule or "")
