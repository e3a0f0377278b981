"""What is kept under a name, as this gateway judges it: a setting that can hold, or why it is left out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gateway.errors import InvalidValue


class Setting(Protocol):
    """What operators want, until it ends: whole seconds since the epoch, or None."""

    @property
    def until(self) -> int | None:
        """When it ends."""


Kind = TypeVar("Kind", bound=Setting)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Kind]):
    """What is kept under `name`. `setting` is None where it cannot be read; `fault` says why it does not hold."""

    name: str
    value: bytes
    setting: Kind | None
    fault: str | None

    def holds(self, now_s: float) -> bool:
        """Whether it is in force."""
        return self.fault is None and not self.ended(now_s)

    def standing(self, now_s: float) -> dict[str, Any]:
        """Return, as a row has it, whether it is in force, and if not, why."""
        if self.holds(now_s):
            return {"in_force": True}
        return {"in_force": False, "fault": self.fault or "Its time is over."}

    def ended(self, now_s: float) -> bool:
        """Whether its time is over."""
        return self.setting is not None and self.setting.until is not None and self.setting.until <= now_s


def judged(
    name: str, value: bytes, *, read: Callable[[str, bytes], Kind], check: Callable[[Kind], None] | None = None
) -> Entry[Kind]:
    """Return the entry that is kept so: it holds where it can be read, and `check` has nothing against it."""
    setting = None
    try:
        setting = read(name, value)
        if check is not None:
            check(setting)
    except InvalidValue as error:
        return Entry(name, value, setting, error.message)
    return Entry(name, value, setting, None)
