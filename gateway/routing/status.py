"""How a pool and its replicas are in this process, as operators are shown it."""

from typing import Any

from gateway.config.pools import address
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica


def status_of(pool: Pool) -> dict[str, Any]:
    """Return a pool as it is in this process, with all its replicas."""
    sources: dict[str, str] = {}  # where several have it there, what the last of these says of it holds
    for source, entries in (("discovery", pool.found), ("config", pool.listed), ("order", pool.orders.added)):
        sources.update(dict.fromkeys((address(entry.url) for entry in entries), source))
    return {
        "name": pool.name,
        "engine": pool.engine,
        "replicas": [_replica(pool, one) | {"from": sources[one.url]} for one in pool.replicas],
        "leaving": [{"replica": one.name, "url": one.url, "in_flight": one.in_flight} for one in pool.leaving],
    }


def _replica(pool: Pool, replica: Replica) -> dict[str, Any]:
    rests_s = max(0.0, replica.rests_until - pool.now())
    pace = replica.pace.tokens_in(1, choices=1)
    return {
        "replica": replica.name,
        "url": replica.url,
        "state": _state(replica, rests=rests_s > 0),
        "up": replica.up,
        "drained": replica.drained,
        "breaker_open": replica.breaker.open,
        "rests_for_s": round(rests_s, 1),
        "in_flight": replica.in_flight,
        "weight": round(replica.weight, 3),
        "tokens_per_second": pace or None,
    }


def _state(replica: Replica, *, rests: bool) -> str:
    """Return the first of what keeps calls from it, or `up`."""
    if replica.drained:
        return "drained"
    if not replica.up:
        return "down"
    if replica.breaker.open:
        return "breaker_open"
    if rests:
        return "resting"
    return "up" if replica.warming_since is None else "warming_up"
