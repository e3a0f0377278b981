"""How a pool and its replicas are in this process, as operators are shown it."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from gateway.config.pools import address
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica

# What keeps calls from a replica; of several that are true, the first is shown.
State = Literal["drained", "down", "breaker_open", "resting", "warming_up", "up"]
STATES: Sequence[State] = get_args(State)


def status_of(pool: Pool) -> dict[str, Any]:
    """Return a pool as it is in this process, with all its replicas."""
    sources: dict[str, str] = {}  # where several have it there, what the last of these says of it holds
    for source, entries in (("discovery", pool.found), ("config", pool.listed), ("order", pool.orders.added)):
        sources.update(dict.fromkeys((address(entry.url) for entry in entries), source))
    return {
        "name": pool.name,
        "engine": pool.engine,
        "in_flight": sum(replica.in_flight for replica in (*pool.replicas, *pool.leaving)),
        "queue": _queue(pool),
        "retries_left": round(pool.retries.saved_up(pool.now()), 1),
        "replicas": [_replica(pool, one) | {"from": sources[one.url]} for one in pool.replicas],
        "leaving": [{"replica": one.name, "url": one.url, "in_flight": one.in_flight} for one in pool.leaving],
    }


def _queue(pool: Pool) -> dict[str, Any] | None:
    """Return who waits and how many may; None where no call ever has to."""
    room = pool.room
    if room is None:
        return None
    return {"waiting": dict(room.waiting), "max_waiting": room.max_waiting, "max_wait_s": room.max_wait_s}


def _replica(pool: Pool, replica: Replica) -> dict[str, Any]:
    now = pool.now()
    rests_s = max(0.0, replica.rests_until - now)
    warms_s = _warms_up_for(pool, replica, now)
    pace = replica.pace.tokens_in(1, choices=1)
    return {
        "replica": replica.name,
        "url": replica.url,
        "state": _state(replica, rests=rests_s > 0, warms=warms_s > 0),
        "up": replica.up,
        "drained": replica.drained,
        "breaker_open": replica.breaker.open,
        "rests_for_s": round(rests_s, 1),
        "warms_up_for_s": round(warms_s, 1),
        "in_flight": replica.in_flight,
        "max_in_flight": None if replica.most == math.inf else int(replica.most),
        "weight": round(replica.full_weight * pool.warmth(replica, now), 3),
        "full_weight": round(replica.full_weight, 3),
        "tokens_per_second": pace or None,
        "load": _load(replica, now),
    }


def _warms_up_for(pool: Pool, replica: Replica, now: float) -> float:
    since = replica.warming_since
    return 0.0 if since is None else max(0.0, since + pool.slow_start - now)


def _load(replica: Replica, now: float) -> dict[str, Any] | None:
    """Return what its engine told last, and how long ago; None where it is not asked, or gave no answer of late."""
    load = replica.load
    if load is None:
        return None
    age_s = round(now - replica.told_at, 1)
    return {"running": load.running, "waiting": load.waiting, "cache_used": load.cache_used, "age_s": age_s}


def _state(replica: Replica, *, rests: bool, warms: bool) -> State:
    if replica.drained:
        return "drained"
    if not replica.up:
        return "down"
    if replica.breaker.open:
        return "breaker_open"
    if rests:
        return "resting"
    return "warming_up" if warms else "up"
