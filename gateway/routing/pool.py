"""Replicas that serve the same model, and the choice among them."""

import logging
import math
import random
from collections.abc import Callable, Collection, Sequence

from gateway.calls.prefix import Prefixes
from gateway.clock import Clock
from gateway.config import DiscoveryEntry, LoadEntry, PoolEntry, QueueEntry, ReplicaEntry
from gateway.errors import RETRY_AFTER_MAX_S, RETRY_AFTER_MIN_S, NoReplicaAvailable, Overloaded, Unavailable
from gateway.routing.balance import balance_of
from gateway.routing.loan import Loan
from gateway.routing.orders.orders import NONE, Orders
from gateway.routing.replica import Replica
from gateway.routing.retries import Retries
from gateway.routing.waiting_room import AT_CAPACITY, WaitingRoom

_log = logging.getLogger(__name__)

# What a waiting room goes by that is not wanted any more: who waits may stay.
_NOBODY_MORE = QueueEntry(max_waiting=0)
# With this share of its weight a replica begins that has come back.
COLD = 0.1


def _nobody(_pool: "Pool") -> None:
    pass


class Pool:
    """A named set of replicas behind one or more models. `changed` is called when it may have become another one.

    `held_back` are those of them that not every call may go to: their breaker is open, they rest, are drained or warm
    up. `listed` and `found` are the entries of those that its config and its discovery have there; orders change them.
    `leaving` are those that it had before: no call goes to them any more. `room` is where calls wait for those that are
    full; None where none can be.
    """

    def __init__(
        self,
        name: str,
        entry: PoolEntry,
        chance: random.Random,
        clock: Clock,
        *,
        changed: Callable[["Pool"], None] = _nobody,
    ) -> None:
        self.name = name
        self.now = clock.monotonic
        self.tells_usage = True  # until an engine refuses to be asked for it
        self.retries = Retries(entry.retry_budget, chance, now=self.now())
        self.balance = balance_of(entry.balance, chance)
        self.replicas: tuple[Replica, ...] = ()
        self.held_back: set[Replica] = set()
        self.room: WaitingRoom | None = None
        self._chance = chance
        self._changed = changed
        self.discovery: DiscoveryEntry | None = None
        self._departed: set[Replica] = set()
        self.listed: tuple[ReplicaEntry, ...] = ()
        self.found: tuple[ReplicaEntry, ...] = ()
        self._orders = NONE
        self._take(entry)
        self.list(entry.replicas)

    @property
    def leaving(self) -> Collection[Replica]:
        """The replicas that belong to it no longer and still have calls; from any thread."""
        return [replica for replica in [*self._departed] if replica.in_flight]

    @property
    def orders(self) -> Orders:
        """What operators ordered."""
        return self._orders

    def configure(self, entry: PoolEntry) -> None:
        """Go by this entry from now on. Calls under way keep their replicas."""
        if entry.balance != self._entry.balance:
            self.balance = balance_of(entry.balance, self._chance)
        if entry.engine != self._entry.engine:
            self.tells_usage = True
        if entry.discovery is None:
            self.found = ()
        self.retries.configure(entry.retry_budget)
        self._take(entry)
        self.list(entry.replicas)

    def list(self, entries: Sequence[ReplicaEntry]) -> None:
        """Have these replicas from now on beside those that are found, but for what operators ordered."""
        self.listed = tuple(entries)
        self._assemble()

    def find(self, entries: Sequence[ReplicaEntry]) -> None:
        """Have these replicas from now on beside those that are listed; where one is both, the list's entry holds."""
        self.found = tuple(entries)
        self._assemble()

    def retire(self) -> None:
        """Leave: only calls that began before go to its replicas, and nobody else cares for them any more."""
        self.discovery = None
        for replica in self.replicas:
            replica.gone = True
        self._changed(self)

    def order(self, given: Orders) -> None:
        """Have these orders of operators hold from now on, in place of those before."""
        if given != self._orders:
            self._orders = given
            self._assemble()

    def _take(self, entry: PoolEntry) -> None:
        self._entry = entry
        self.discovery = entry.discovery
        self.engine = entry.engine
        self.attempts = entry.attempts
        self.timeouts = entry.timeouts
        self.keep_alive_comments = entry.keep_alive_comments
        self.health = entry.health
        self.by_prefix = entry.balance == "prefix_affinity"
        self.load = entry.load or (LoadEntry() if entry.balance == "least_load" else None)
        self.slow_start = entry.slow_start

    def _assemble(self) -> None:
        """Make `replicas` what is listed and ordered. One that was here, or has just left, keeps all that is known."""
        self._departed = {replica for replica in self._departed if replica.in_flight}
        known = {replica.url: replica for replica in (*self._departed, *self.replicas)}
        here: dict[str, Replica] = {}
        for entry in self._orders.applied_to((*self.found, *self.listed)):
            replica = Replica(entry, self._entry)
            if replica.url in known:
                replica = known[replica.url]
                replica.configure(entry, self._entry)
            replica.gone = False
            replica.drained = replica.url in self._orders.drained
            here[replica.url] = replica
        # A replica that comes to others that stay and serve has to show first that it is up.
        serves = any(replica.up for url, replica in here.items() if url in known)
        for url in here.keys() - known.keys():
            here[url].up = not serves
        for replica in known.values():
            if replica.url not in here:
                replica.gone = True
                self._departed.add(replica)
        self._departed.difference_update(here.values())
        self.replicas = tuple(here.values())
        now = self.now()  # one that comes back is held back by what it left with
        self.held_back = {replica for replica in self.replicas if _held(replica, now)}
        for replica in self.held_back:
            if replica.warming_since is not None:
                self._warm(replica, now)
        self._changed(self)
        self._furnish()

    def _furnish(self) -> None:
        """Have a waiting room where a call may have to wait."""
        entry = self._entry.queue
        if entry is None and any(replica.most < math.inf for replica in self.replicas):
            entry = QueueEntry()
        self._wants_room = entry is not None
        if self.room is None:
            self.room = WaitingRoom(self, entry) if entry else None
            return
        self.room.configure(entry or _NOBODY_MORE)
        self.room.look()
        self.vacate()

    def vacate(self) -> None:
        """Have no waiting room any more where none is wanted and nobody waits; for who has just left one."""
        if not self._wants_room and not self.room:
            self.room = None

    def lend(self, *, tried: Collection[Replica] = (), prefixes: Prefixes = ()) -> Loan:
        """Lend the best replica that calls may go to and that is not in `tried`.

        `prefixes` are the call's, where the pool goes by them.

        Raises:
            NoReplicaAvailable: none is up.
            Overloaded: those that are up are full, or said that they are.
        """
        eligible = self.eligible(tried)
        if not eligible:
            raise self.refusal()
        return Loan(self, self.balance.choose(eligible, prefixes))

    def eligible(self, tried: Collection[Replica]) -> Sequence[Replica]:
        """Return the replicas that a call may go to now, having tried those."""
        replicas = self._open_to_calls() if self.held_back else self.replicas
        eligible = [replica for replica in replicas if replica.up]
        if self.room is not None:
            eligible = [replica for replica in eligible if replica.in_flight < replica.most]
        if tried:
            eligible = [replica for replica in eligible if replica not in tried]
        return eligible

    def loan(self, eligible: Sequence[Replica], prefixes: Prefixes) -> Loan:
        """Lend the best of these, which are eligible."""
        return Loan(self, self.balance.choose(eligible, prefixes))

    @property
    def lendable(self) -> Sequence[Replica]:
        """The replicas that are up and not drained: calls may go there now, or in time."""
        return [replica for replica in self.replicas if replica.up and not replica.drained]

    def could_lend(self, tried: Collection[Replica]) -> bool:
        """Whether it is worth waiting for a replica that is not in `tried`: one is up, whatever holds it back now."""
        return any(replica not in tried for replica in self.lendable)

    def lends_more_at(self, since: float) -> float:
        """Return the first moment after `since` at which, by the time alone, more may be lent; or infinity."""
        moments = [
            moment
            for replica in self.held_back
            if replica.up and not replica.drained
            for moment in (replica.rests_until, replica.breaker.opens_to_one_at or 0.0)
            if moment > since
        ]
        return min(moments, default=math.inf)

    def look(self) -> None:
        """Lend what can be lent to those that wait, as something has changed."""
        if self.room is not None:
            self.room.look()

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
        self.warm_up(replica)
        self.look()

    def warm_up(self, replica: Replica) -> None:
        """Give a replica that has come back little at first, and more until `slow_start` has passed.

        It holds no calls, so that it would get all that come; and its caches are cold.
        """
        if self.slow_start:
            replica.warming_since = self.now()
            replica.weight = replica.full_weight * COLD
            self.held_back.add(replica)

    def rest(self, replica: Replica, wait_s: float) -> None:
        """Give the replica no calls for so long; never longer than a client would be told to wait."""
        replica.rests_until = max(replica.rests_until, self.now() + min(wait_s, RETRY_AFTER_MAX_S))
        self.held_back.add(replica)

    def _open_to_calls(self) -> Collection[Replica]:
        """Return the replicas that calls may go to, if they are up.

        Where the breakers of all that are up are open, or of the share that the entry says, none counts: they guard a
        replica's share of the calls, and a pool that refuses everything is worse than one that tries.
        """
        now = self.now()
        if not self.held_back:
            return self.replicas
        for replica in [*self.held_back]:
            if replica.warming_since is not None:
                self._warm(replica, now)
            if not _held(replica, now) or replica not in self.replicas:  # a call may find fault with one that has left
                self.held_back.discard(replica)
        rested = [replica for replica in self.replicas if replica.rests_until <= now and not replica.drained]
        here = [replica for replica in self.replicas if replica.up and not replica.drained]
        breaker = self._entry.breaker
        if breaker is not None and sum(replica.breaker.open for replica in here) >= breaker.panic_at * len(here):
            return rested
        return [replica for replica in rested if replica.breaker.lets(now)]

    def _warm(self, replica: Replica, now: float) -> None:
        """Set the weight of one that warms up to what it should be by now."""
        replica.weight = replica.full_weight * self.warmth(replica, now)
        if replica.weight >= replica.full_weight:
            replica.warming_since = None

    def warmth(self, replica: Replica, now: float) -> float:
        """Return the share of its weight that a replica has by now: 1 where `slow_start` has passed."""
        since = replica.warming_since
        share = 1.0 if since is None or not self.slow_start else (now - since) / self.slow_start
        return min(1.0, max(COLD, share))

    def refusal(self) -> Unavailable:
        """Return why nothing is lent now."""
        now = self.now()
        here = self.lendable
        if any(replica.rests_until > now or replica.in_flight >= replica.most for replica in here):
            free_at = [max(replica.rests_until, replica.breaker.opens_to_one_at or 0.0) for replica in here]
            waits_s = [at - now for at in free_at if at > now]
            return Overloaded(AT_CAPACITY, retry_after_s=min(waits_s, default=RETRY_AFTER_MIN_S))
        return NoReplicaAvailable("No server of this model is available right now; retry shortly.", retry_after_s=5)


def _held(replica: Replica, now: float) -> bool:
    """Whether not every call may go to it."""
    return replica.breaker.open or replica.rests_until > now or replica.drained or replica.warming_since is not None
