"""Replicas that serve the same model, and the choice among them."""

import random
from collections.abc import Collection

from gateway.calls.prefix import Prefixes
from gateway.config import PoolEntry
from gateway.errors import NoReplicaAvailable
from gateway.routing.balance import balance_of
from gateway.routing.replica import Replica


class Loan:
    """A replica that counts as in flight inside the block."""

    __slots__ = ("_replica",)

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def __enter__(self) -> Replica:
        self._replica.in_flight += 1
        return self._replica

    def __exit__(self, *_: object) -> None:
        self._replica.in_flight -= 1


class Pool:
    """A named set of replicas behind one or more models."""

    def __init__(self, name: str, entry: PoolEntry, chance: random.Random) -> None:
        self.name = name
        self.engine = entry.engine
        self.attempts = entry.attempts
        self.timeouts = entry.timeouts
        self.keep_alive_comments = entry.keep_alive_comments
        self.health = entry.health
        self.replicas = tuple(Replica(replica, entry) for replica in entry.replicas)
        self.tells_usage = True  # until an engine refuses to be asked for it
        self.by_prefix = entry.balance == "prefix_affinity"
        self.balance = balance_of(entry.balance, chance)

    def lend(self, *, tried: Collection[Replica] = (), prefixes: Prefixes = ()) -> Loan:
        """Lend the best replica that is up and not in `tried`; `prefixes` are the call's, where the pool goes by them.

        Raises:
            NoReplicaAvailable: there is none.
        """
        eligible = [replica for replica in self.replicas if replica.up]
        if tried:
            eligible = [replica for replica in eligible if replica not in tried]
        if not eligible:
            raise NoReplicaAvailable("No server of this model is available right now; retry shortly.", retry_after_s=5)
        return Loan(self.balance.choose(eligible, prefixes))

    def has_another(self, *, tried: Collection[Replica]) -> bool:
        """Whether a replica is up that is not in `tried`."""
        return any(replica.up and replica not in tried for replica in self.replicas)
