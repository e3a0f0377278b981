"""Entries of one kind of settings in, rows for whoever looks at them out: as JSON has them, and as text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gateway.admission.settings.entry import Entry, Setting
from gateway.admission.settings.members import iso


class Dated(Setting, Protocol):
    """A setting that says when it was made."""

    @property
    def set_at(self) -> int:
        """In seconds since the epoch."""


Kind = TypeVar("Kind", bound=Dated)

_PLACE = 3
_ENDS = ("set_at", "until", "state")


@dataclass(frozen=True, slots=True)
class Rows(Generic[Kind]):
    """How one kind is shown: its `members` in JSON, None where there is none; its `cells` in a table, under `told`.

    The first three of `told` are members that say what a row is of.
    """

    told: tuple[str, ...]
    members: Callable[[Kind], dict[str, Any]]
    cells: Callable[[dict[str, Any]], tuple[object, ...]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's header."""
        return (*self.told, *_ENDS)

    def of(self, entries: Iterable[Entry[Kind]], *, now_s: float, **where: str | None) -> list[dict[str, Any]]:
        """Return those whose members are as `where` says, in order, with whether each is in force, and if not, why.

        Of what an unreadable one is, nobody knows: it is shown where all are asked for.
        """
        asked = {name: value for name, value in where.items() if value is not None}
        found = []
        for entry in entries:
            one = entry.setting
            if one is None:
                row: dict[str, Any] = {"name": entry.name}
            else:
                row = {name: value for name, value in self.members(one).items() if value is not None}
                row |= {"set_at": iso(one.set_at), "until": None if one.until is None else iso(one.until)}
            if asked.items() <= row.items():
                found.append(row | entry.standing(now_s))
        return sorted(found, key=self._place)

    def texts(self, row: dict[str, Any]) -> tuple[object, ...]:
        """Return what a table shows of a row, under `columns`."""
        state = "in force" if row["in_force"] else f"not in force: {row['fault']}"
        if "name" in row:
            return row["name"], *[""] * len(self.columns[2:]), state
        return *self.cells(row), row["set_at"], row["until"] or "", state

    def _place(self, row: dict[str, Any]) -> list[str]:
        return [row["name"]] if "name" in row else [row.get(name, "") for name in self.told[:_PLACE]]


def words(row: dict[str, Any], names: Iterable[str]) -> str:
    """Return those members that a row has, for one cell."""
    return ", ".join(f"{name} {word(row[name])}" for name in names if name in row)


def word(value: object) -> str:
    """Return a member's value as JSON has it, without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
