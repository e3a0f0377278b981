"""What operators want of a pool's replicas at runtime, beyond what its config lists or its discovery finds."""

from dataclasses import dataclass

from gateway.config import ReplicaEntry


@dataclass(frozen=True, slots=True)
class Orders:
    """Replicas that are `added`; URLs of those `removed`, whoever lists them, and of those `drained`: kept idle."""

    added: tuple[ReplicaEntry, ...] = ()
    removed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()

    def applied_to(self, listed: tuple[ReplicaEntry, ...]) -> tuple[ReplicaEntry, ...]:
        """Return the entries of the replicas that there are. Where one is both listed and added, the order's holds."""
        by_url = {entry.url: entry for entry in (*listed, *self.added)}
        return tuple([entry for url, entry in by_url.items() if url not in self.removed])


NONE = Orders()
