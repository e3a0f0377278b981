"""Replicas that serve the same model, and the choice among them."""

import math
import random
from collections.abc import Collection

from gateway.config import PoolEntry
from gateway.errors import NoReplicaAvailable
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
        self._chance = chance

    def lend(self, *, tried: Collection[Replica] = ()) -> Loan:
        """Lend the best replica that is up and not in `tried`.

        Raises:
            NoReplicaAvailable: there is none.
        """
        replica = choose(self.replicas, self._chance, tried=tried)
        if replica is None:
            raise NoReplicaAvailable("No server of this model is available right now; retry shortly.", retry_after_s=5)
        return Loan(replica)

    def has_another(self, *, tried: Collection[Replica]) -> bool:
        """Whether a replica is up that is not in `tried`."""
        return any(replica.up and replica not in tried for replica in self.replicas)


def choose(replicas: Collection[Replica], chance: random.Random, *, tried: Collection[Replica] = ()) -> Replica | None:
    """Return the replica with the fewest calls in flight for its weight, ties by chance; None if none is eligible."""
    best: list[Replica] = []
    least = math.inf
    for replica in replicas:
        if not replica.up or replica in tried:
            continue
        load = (replica.in_flight + 1) / replica.weight
        if load < least:
            best, least = [replica], load
        elif load == least:
            best.append(replica)
    if len(best) > 1:
        return chance.choice(best)
    return best[0] if best else None
