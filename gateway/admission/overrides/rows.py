"""How overrides are shown to whoever looks at them."""

from typing import Any

from gateway.admission.overrides.override import Override
from gateway.admission.settings.members import iso
from gateway.admission.settings.rows import Rows, word, words


def said(override: Override) -> str:
    """Return what an override changes, for a line of the log."""
    changes = ", ".join(f"{name} {word(value)}" for name, value in override.members.items())
    return changes if override.until is None else f"{changes} until {iso(override.until)}"


def _members(one: Override) -> dict[str, Any]:
    return {"tenant": one.tenant, "key": one.key, "rule": one.rule} | one.members


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    change = words(row, ("plan", "requests", "tokens", "concurrent", "shadow"))
    return row["tenant"], row.get("key", "(all)"), row.get("rule", "(plan)"), change


ROWS: Rows[Override] = Rows(("tenant", "key", "rule", "change"), _members, _cells)
