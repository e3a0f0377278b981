"""Replicas that serve the same model, and the choice among them."""

import logging
import random
from collections.abc import Collection

from gateway.calls.prefix import Prefixes
from gateway.clock import Clock
from gateway.config import PoolEntry
from gateway.errors import RETRY_AFTER_MAX_S, NoReplicaAvailable, Overloaded, Unavailable
from gateway.routing.balance import balance_of
from gateway.routing.replica import Replica
from gateway.routing.retries import Retries

_log = logging.getLogger(__name__)


class Loan:
    """A replica that counts as in flight inside the block, and is told there what its call says of it."""

    __slots__ = ("_decides", "_on_trial", "_pool", "_replica")

    def __init__(self, pool: "Pool", replica: Replica) -> None:
        self._pool = pool
        self._replica = replica
        self._decides = self._on_trial = False

    def __enter__(self) -> Replica:
        replica = self._replica
        replica.in_flight += 1
        if self._pool.held_back:
            self._decides = replica.breaker.lend()
        return replica

    def __exit__(self, *_: object) -> None:
        self._replica.in_flight -= 1
        if self._decides:
            self._replica.breaker.give_back()

    def began(self) -> None:
        """An answer has begun."""
        if self._decides:
            self._decides, self._on_trial = False, True
            if self._replica.breaker.close():
                self._pool.closed(self._replica)

    def ended_well(self) -> None:
        """The answer is whole."""
        self._replica.breaker.good += 1

    def fault(self, reason: str) -> None:
        """The engine, or the way to it, has failed this call. `reason` is for the log."""
        breaker, now = self._replica.breaker, self._pool.now()
        if self._decides:
            self._decides = False
            opened = breaker.reopen(now)
        elif self._on_trial:  # the answer that closed the breaker broke off
            opened = breaker.trip(now)
        else:
            opened = breaker.fault(now)
        if opened:
            self._pool.opened(self._replica, reason)

    def full(self, wait_s: float) -> None:
        """The engine is full, and said when to come again."""
        self._pool.rest(self._replica, wait_s)


class Pool:
    """A named set of replicas behind one or more models.

    `held_back` are those of them that not every call may go to: their breaker is open, or they rest.
    """

    def __init__(self, name: str, entry: PoolEntry, chance: random.Random, clock: Clock) -> None:
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
        self.now = clock.monotonic
        self.retries = Retries(entry.retry_budget, chance, now=self.now())
        self.held_back: set[Replica] = set()

    def lend(self, *, tried: Collection[Replica] = (), prefixes: Prefixes = ()) -> Loan:
        """Lend the best replica that calls may go to and that is not in `tried`.

        `prefixes` are the call's, where the pool goes by them.

        Raises:
            NoReplicaAvailable: none is up.
            Overloaded: those that are up said that they are full.
        """
        replicas = self._open_to_calls() if self.held_back else self.replicas
        eligible = [replica for replica in replicas if replica.up]
        if tried:
            eligible = [replica for replica in eligible if replica not in tried]
        if not eligible:
            raise self._refusal()
        return Loan(self, self.balance.choose(eligible, prefixes))

    def has_another(self, *, tried: Collection[Replica]) -> bool:
        """Whether there is a replica that calls may go to and that is not in `tried`."""
        return any(replica.up and replica not in tried for replica in self._open_to_calls())

    def opened(self, replica: Replica, reason: str) -> None:
        """Take note that a replica's breaker has opened."""
        self.held_back.add(replica)
        _log.warning("breaker of replica %s of pool %s is open; last fault: %s", replica.name, self.name, reason)

    def closed(self, replica: Replica) -> None:
        """Take note that it has closed again."""
        _log.warning("breaker of replica %s of pool %s is closed", replica.name, self.name)

    def rest(self, replica: Replica, wait_s: float) -> None:
        """Give the replica no calls for so long; never longer than a client would be told to wait."""
        replica.rests_until = max(replica.rests_until, self.now() + min(wait_s, RETRY_AFTER_MAX_S))
        self.held_back.add(replica)

    def _open_to_calls(self) -> Collection[Replica]:
        """Return the replicas that calls may go to, if they are up.

        Where the breakers of all that are up are open, none counts: they guard a replica's share of the calls, and a
        pool that refuses everything is worse than one that tries.
        """
        now = self.now()
        if not self.held_back:
            return self.replicas
        for replica in [*self.held_back]:
            if not replica.breaker.open and replica.rests_until <= now:
                self.held_back.discard(replica)
        rested = [replica for replica in self.replicas if replica.rests_until <= now]
        if all(replica.breaker.open for replica in self.replicas if replica.up):
            return rested
        return [replica for replica in rested if replica.breaker.lets(now)]

    def _refusal(self) -> Unavailable:
        now = self.now()
        rests = [replica.rests_until - now for replica in self.replicas if replica.up and replica.rests_until > now]
        if rests:
            return Overloaded(
                "Every server of this model is at capacity; retry after the time in Retry-After.",
                retry_after_s=min(rests),
            )
        return NoReplicaAvailable("No server of this model is available right now; retry shortly.", retry_after_s=5)
