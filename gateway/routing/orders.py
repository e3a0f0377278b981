"""What operators want of a pool's replicas at runtime, beyond what its config lists or its discovery finds."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.config import ReplicaEntry


@dataclass(frozen=True, slots=True)
class Orders:
    """Replicas that are `added`; those `removed`, whoever lists them, and those `drained`: kept idle, by `address`."""

    added: tuple[ReplicaEntry, ...] = ()
    removed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()

    def applied_to(self, listed: tuple[ReplicaEntry, ...]) -> tuple[ReplicaEntry, ...]:
        """Return the entries of the replicas that there are. Where one is both listed and added, the order's holds."""
        by_address = {address(entry.url): entry for entry in (*listed, *self.added)}
        return tuple([entry for where, entry in by_address.items() if where not in self.removed])

    def holds_all(self, entries: tuple[ReplicaEntry, ...]) -> bool:
        """Whether all of these are drained."""
        return all(address(entry.url) in self.drained for entry in entries)


NONE = Orders()


def address(url: str) -> str:
    """Return a replica's URL in the one way that all ways of writing it come to: its port told, no slash at the end."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}"
