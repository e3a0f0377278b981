"""All pools of this gateway, as the config has them: they change in place, so that calls under way see who is left."""

import random
from collections.abc import Callable, Iterator, Mapping

from gateway.clock import Clock
from gateway.config import PoolEntry, Priority
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica

Follow = Callable[[Pool], None]
"""Is told that a pool's replicas may be others than before."""


class Pools(Mapping[str, Pool]):
    """The pools by name."""

    def __init__(self, entries: Mapping[str, PoolEntry], chance: random.Random, clock: Clock) -> None:
        self._chance = chance
        self._clock = clock
        self._followers: list[Follow] = []
        self._pools = {name: self._new(name, entry) for name, entry in entries.items()}

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    def follow(self, follower: Follow) -> None:
        """Tell `follower` of every pool, now and whenever its replicas change."""
        self._followers.append(follower)
        for pool in self._pools.values():
            follower(pool)

    def configure(self, entries: Mapping[str, PoolEntry]) -> None:
        """Have these pools from now on. One that stays keeps what is known of its replicas."""
        before = self._pools
        self._pools = {name: before.get(name) or self._new(name, entry) for name, entry in entries.items()}
        for name, pool in before.items():
            if name in entries:
                pool.configure(entries[name])
            else:
                pool.retire()

    @property
    def replicas(self) -> Iterator[tuple[Pool, Replica]]:
        """Each pool with each of its replicas, those that have left and still have calls included; from any thread."""
        for pool in [*self._pools.values()]:
            for replica in (*pool.replicas, *pool.leaving):
                yield pool, replica

    def waiting(self) -> Iterator[tuple[tuple[str, Priority], int]]:
        """Yield each pool's name and each class, where calls may wait, with how many do; from any thread."""
        for pool in [*self._pools.values()]:
            room = pool.room
            for priority, calls in room.waiting.items() if room is not None else ():
                yield (pool.name, priority), calls

    @property
    def shut(self) -> str | None:
        """Why no call can go to any replica, or None where one can."""
        up = [replica for pool in self._pools.values() for replica in pool.replicas if replica.up]
        if not up:
            return "no replica of any pool is up"
        if all(replica.drained for replica in up):
            return "every replica that is up is drained, by order of operators"
        return None

    def _new(self, name: str, entry: PoolEntry) -> Pool:
        return Pool(name, entry, self._chance, self._clock, changed=self._tell)

    def _tell(self, pool: Pool) -> None:
        for follower in self._followers:
            follower(pool)
