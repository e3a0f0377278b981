"""What a store keeps of one kind of settings: bytes by name, and a version that every change moves. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# The version of what was never written, or is lost.
NEVER = b""


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is kept under one version. A version is never used again, also not after the store lost its data."""

    version: bytes = NEVER
    entries: Mapping[str, bytes] = field(default_factory=dict)


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
        """Write back what was `kept`, where nothing is kept any more because the store lost its data."""

    async def close(self) -> None:
        """Let the store go."""
