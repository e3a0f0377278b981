"""How the workers of one gateway say that its pools are in, how they are in the gateway out. No I/O.

Calls, places and retries are each worker's own, and added up. A replica is as the worker finds it that has most against
it; where each has it goes along, under `workers`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gateway.routing.status import STATES
from gateway.workers.asked import Asked

Status = dict[str, Any]

# What is shown of a pool, and of a replica, in each worker.
_OF_EACH_POOL = ("in_flight", "queue", "retries_left")
_OF_EACH = ("state", "up", "breaker_open", "rests_for_s", "warms_up_for_s", "in_flight", "weight")


def of_all(asked: Asked) -> dict[str, Any]:
    """Return the page of pools, or of one, that these workers' pages make together."""
    pages = [*asked.pages.values()] or [{"object": "list", "current": False, "orders": [], "data": []}]
    both = {"current": all(page["current"] for page in pages), "silent_workers": asked.silent}
    if "data" in pages[0]:
        return pages[0] | both | {"data": merged({worker: page["data"] for worker, page in asked.pages.items()})}
    (pool,) = merged({worker: [page] for worker, page in asked.pages.items()})
    return pool | both


def merged(told: Mapping[int, Sequence[Status]]) -> list[Status]:
    """Return the pools of a gateway whose workers told these, by their number.

    One that a worker does not have (yet, or any more) is as the others say.
    """
    return [_pool(of_each) for of_each in _by("name", told).values()]


def _pool(of_each: Mapping[int, Status]) -> Status:
    replicas = _by("url", {worker: pool["replicas"] for worker, pool in of_each.items()})
    leaving = _by("url", {worker: pool["leaving"] for worker, pool in of_each.items()})
    pools = of_each.values()
    return _first(pools) | {
        "in_flight": _of(pools, "in_flight", sum),
        "queue": _queue([pool["queue"] for pool in pools if pool["queue"] is not None]),
        "retries_left": round(_of(pools, "retries_left", sum), 1),
        "workers": [
            {"worker": worker} | {name: pool[name] for name in _OF_EACH_POOL} for worker, pool in of_each.items()
        ],
        "replicas": [_replica(one) for one in replicas.values()],
        "leaving": [
            _first(one.values()) | {"in_flight": _of(one.values(), "in_flight", sum)} for one in leaving.values()
        ],
    }


def _queue(queues: Sequence[Status]) -> Status | None:
    if not queues:
        return None
    waiting = {priority: sum(one["waiting"][priority] for one in queues) for priority in queues[0]["waiting"]}
    return {
        "waiting": waiting,
        "max_waiting": _of(queues, "max_waiting", sum),
        "max_wait_s": _of(queues, "max_wait_s", max),
    }


def _replica(of_each: Mapping[int, Status]) -> Status:
    rows = of_each.values()
    paces = [row["tokens_per_second"] for row in rows if row["tokens_per_second"] is not None]
    loads = [row["load"] for row in rows if row["load"] is not None]
    bounds = [row["max_in_flight"] for row in rows]
    return _first(rows) | {
        "state": min((row["state"] for row in rows), key=STATES.index),
        "up": _of(rows, "up", all),
        "drained": _of(rows, "drained", any),
        "breaker_open": _of(rows, "breaker_open", any),
        "rests_for_s": _of(rows, "rests_for_s", max),
        "warms_up_for_s": _of(rows, "warms_up_for_s", max),
        "in_flight": _of(rows, "in_flight", sum),
        "max_in_flight": None if None in bounds else sum(bounds),
        "weight": round(_of(rows, "weight", fmean), 3),
        "tokens_per_second": round(fmean(paces)) if paces else None,
        "load": min(loads, key=lambda load: load["age_s"], default=None),  # each asks the same engine
        "workers": [{"worker": worker} | {name: row[name] for name in _OF_EACH} for worker, row in of_each.items()],
    }


def _by(name: str, told: Mapping[int, Sequence[Status]]) -> dict[str, dict[int, Status]]:
    """Return, for each value of the member `name`, in the order in which they come, what each worker told of it."""
    found: dict[str, dict[int, Status]] = {}
    for worker, rows in told.items():
        for row in rows:
            found.setdefault(row[name], {})[worker] = row
    return found


def _first(rows: Iterable[Status]) -> Status:
    return next(iter(rows))


def _of(rows: Iterable[Status], name: str, rule: Callable[[list[Any]], Any]) -> Any:
    return rule([row[name] for row in rows])
