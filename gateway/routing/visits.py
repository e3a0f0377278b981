"""A task for each replica, from when it comes to when it goes: so that one that hangs delays no other."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from gateway import background
from gateway.routing.pool import Pool
from gateway.routing.pools import Pools
from gateway.routing.replica import Replica

Visit = Callable[[Pool, Replica], Coroutine[Any, Any, None]]
"""Looks after one replica of a pool until it is cancelled."""


def _all(_pool: Pool) -> bool:
    return True


class Visits:
    """Has every replica of the pools that `wanted` says visited. `what` names the tasks."""

    def __init__(self, pools: Pools, visit: Visit, *, what: str, wanted: Callable[[Pool], bool] = _all) -> None:
        self._pools = pools
        self._visit = visit
        self._what = what
        self._wanted = wanted
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Begin with the replicas that there are, and from then on with those that come."""
        self._pools.follow(self._follow)

    async def close(self) -> None:
        """End all visits, and begin none any more, whoever comes."""
        self._closed = True
        await background.end(*self._tasks.values(), *self._ending)

    def _follow(self, pool: Pool) -> None:
        if self._closed:
            return
        here = pool.replicas if self._wanted(pool) else ()
        for replica in [one for one in self._tasks if one.gone or (one in pool.replicas and one not in here)]:
            self._end(self._tasks.pop(replica))
        for replica in here:
            if replica not in self._tasks and not replica.gone:
                visit = partial(self._visit, pool, replica)
                self._tasks[replica] = background.begin(visit, name=f"{self._what} of {replica.name}")

    def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
