"""What operators want of a pool's replicas at runtime, beyond what its config lists or its discovery finds."""

from dataclasses import dataclass

from gateway.config import ReplicaEntry
from gateway.config.pools import address


@dataclass(frozen=True, slots=True)
class Orders:
    """Replicas that are `added`; those `removed`, whoever lists them, and those `drained`: kept idle, by `address`."""

    added: tuple[ReplicaEntry, ...] = ()
    removed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()

    def applied_to(self, listed: tuple[ReplicaEntry, ...]) -> tuple[ReplicaEntry, ...]:
        """Return the entries of the replicas that there are. Of one that is both, what the order says of it holds."""
        by_address = {address(entry.url): entry for entry in listed}
        for entry in self.added:
            known = by_address.get(address(entry.url), entry)
            said = {name: getattr(entry, name) for name in entry.model_fields_set - {"url"}}
            by_address[address(entry.url)] = known.model_copy(update=said)
        return tuple([entry for where, entry in by_address.items() if where not in self.removed])

    def holds_all(self, entries: tuple[ReplicaEntry, ...]) -> bool:
        """Whether all of these are drained."""
        return all(address(entry.url) in self.drained for entry in entries)


NONE = Orders()
