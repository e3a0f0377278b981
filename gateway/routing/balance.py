"""How a pool chooses one of the replicas that a call may go to. Numbers in, a replica out; no I/O.

A balance is given the eligible replicas only, and never none: which these are (up, not tried yet) the pool decides.
"""

import math
import random
from collections.abc import Sequence
from typing import Protocol

from gateway.calls.prefix import Prefixes
from gateway.config.pools import BalanceName
from gateway.routing.replica import Replica

# Of what its weight's share of the calls in flight is, the most that a replica takes of what is sent to it by prefix.
BOUND = 1.25

_64_BITS = 2**64 - 1
_MORE = 2**64 + 2**12  # so that no quotient rounds to 1, whose logarithm is 0
# Odd numbers without a pattern in their bits: what is multiplied by them differs in its upper half wherever it did.
_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


class Balance(Protocol):
    """Chooses among replicas."""

    def choose(self, eligible: Sequence[Replica], prefixes: Prefixes) -> Replica:
        """Return one of `eligible` for a call whose prompt begins with these; there are none where nobody looked."""


class LeastRequests:
    """The replica with the fewest calls in flight for its weight; ties by chance.

    Where engines are asked for their load (`Replica.others`), it is the least loaded, whoever loads it.
    """

    __slots__ = ("_chance",)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, eligible: Sequence[Replica], prefixes: Prefixes) -> Replica:  # noqa: ARG002 it asks for none
        """Return the least loaded."""
        best: list[Replica] = []
        least = math.inf
        for replica in eligible:
            load = (replica.in_flight + replica.others + 1) / replica.weight
            if load < least:
                best, least = [replica], load
            elif load == least:
                best.append(replica)
        return best[0] if len(best) == 1 else best[int(self._chance.random() * len(best))]


class RoundRobin:
    """Each replica in its turn, as often as its weight says and evenly spaced.

    With every choice each replica earns its weight, and the richest pays for all. They begin with something by chance,
    so that gateways which start together do not march in step.
    """

    __slots__ = ("_chance",)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, eligible: Sequence[Replica], prefixes: Prefixes) -> Replica:  # noqa: ARG002 it asks for none
        """Return the one whose turn it is."""
        richest, paid = eligible[0], 0.0
        for replica in eligible:
            earned = self._chance.random() if replica.earned is None else replica.earned
            replica.earned = earned + replica.weight
            paid += replica.weight
            if replica.earned > (richest.earned or 0.0):
                richest = replica
        richest.earned = (richest.earned or 0.0) - paid
        return richest


class PrefixAffinity:
    """The replica that had the calls which began alike, for its cache holds what they began with.

    Every prefix has one replica by weighted rendezvous hashing, the same in every gateway: where a replica leaves, only
    its prefixes move, and where one comes, only those that it takes. A replica that has `BOUND` times its share of the
    calls in flight takes no more: the longer prefix is tried, where there is one, and then the least loaded. So a hot
    prefix spills over, and conversations that only open alike part.
    """

    __slots__ = ("_otherwise",)

    def __init__(self, chance: random.Random) -> None:
        self._otherwise = LeastRequests(chance)

    def choose(self, eligible: Sequence[Replica], prefixes: Prefixes) -> Replica:
        """Return the replica of the first prefix whose replica has room, or the least loaded."""
        calls, weights = 1.0, 0.0  # with this call
        for replica in eligible:
            calls += replica.in_flight + replica.others
            weights += replica.weight
        most = BOUND * calls / weights
        for prefix in prefixes:
            home = self._home(eligible, prefix)
            if home.in_flight + home.others < most * home.weight:
                return home
        return self._otherwise.choose(eligible, ())

    def _home(self, eligible: Sequence[Replica], prefix: int) -> Replica:
        """Return the replica that ranks highest for a prefix; the larger its weight, the more often it does."""
        best, highest = eligible[0], -math.inf
        for replica in eligible:
            mixed = (prefix ^ replica.seed) * _FIRST & _64_BITS
            mixed = (mixed ^ mixed >> 32) * _SECOND & _64_BITS
            rank = replica.weight / -math.log(((mixed ^ mixed >> 32) + 1) / _MORE)
            if rank > highest:
                best, highest = replica, rank
        return best


def balance_of(name: BalanceName, chance: random.Random) -> Balance:
    """Return the balance of this name, for one pool."""
    if name in {"least_requests", "least_load"}:
        return LeastRequests(chance)
    return RoundRobin(chance) if name == "round_robin" else PrefixAffinity(chance)
