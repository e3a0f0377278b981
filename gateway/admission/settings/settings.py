"""What a store keeps of one kind of settings: bytes by name, and a version that every change moves. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# The version of what was never written, or is lost.
NEVER = b""


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is kept under one version. A version is never used again, also not after the store lost its data.

    Behind a version's id may stand, each after a dot, the origins of what was ever kept in the same place.
    """

    version: bytes = NEVER
    entries: Mapping[str, bytes] = field(default_factory=dict)

    def is_lost_at(self, version: bytes) -> bool:
        """Whether a store at this `version` has lost this: nothing is there, or something of another origin."""
        if self.version == NEVER:
            return False
        origins = _origins(version)
        return version == NEVER or (bool(origins) and not _origins(self.version) <= origins)


@dataclass(frozen=True, slots=True)
class Change:
    """Write `value` under `name`, or remove what is there (None). With `before`: only while that is its value."""

    name: str
    value: bytes | None
    before: bytes | None = None


class Settings(Protocol):
    """One kind of settings in a store. Changes of different names never undo each other.

    Each method raises StoreUnavailable where the store does not answer; its cause says why.
    """

    async def version(self) -> bytes:
        """Return the version of what is kept: one cheap question."""

    async def read(self) -> Kept:
        """Return all that is kept, as it was at one moment."""

    async def change(self, changes: Sequence[Change]) -> None:
        """Make `changes`, all in one step."""

    async def restore(self, kept: Kept) -> None:
        """Write back what was `kept`, because the store lost its data. What is there already stays."""

    async def close(self) -> None:
        """Let the store go."""


def _origins(version: bytes) -> set[bytes]:
    return set(version.split(b".")[1:])
