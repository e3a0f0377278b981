"""How a gateway does in, what of it an operator should look at out, a sentence each. No I/O."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.admin.readiness import OK

# The store is asked twice a second; what is older was not to be had.
CURRENT_S = 2.0

_Part = Mapping[str, Any]


def trouble(status: _Part) -> list[str]:
    """Return what is amiss, the worst first."""
    return [
        *(f"Not ready: {name}: {said}." for name, said in status["checks"].items() if said != OK),
        *_of_workers(status),
        *_of_configs(status["configs"]),
        *(said for pool in status["pools"] for said in _of_pool(pool)),
        *_of_store(status["store"]),
        *([f"Defects of the gateway's own: {status['defects']}; the log has each."] if status["defects"] else []),
    ]


def _of_workers(status: _Part) -> Iterator[str]:
    if silent := status["silent_workers"]:
        yield f"Workers that do not answer, and of which nothing is shown: {_listed(silent)}."
    if len({config["sha256"] for config in status["configs"]}) > 1:
        yield "Workers have different configs."


def _of_configs(configs: Iterable[_Part]) -> Iterator[str]:
    """Say once what all workers say."""
    refused = [last for config in configs if (last := config["last_reload"]) and last["result"] == "failed"]
    for problems in dict.fromkeys(tuple(last["problems"]) for last in refused):
        at = next(last["at"] for last in refused if tuple(last["problems"]) == problems)
        yield f"The config was read again at {at} and cannot hold; the one before does: {'; '.join(problems)}."


def _of_pool(pool: _Part) -> Iterator[str]:
    name, replicas, queue = pool["name"], pool["replicas"], pool["queue"]
    if not replicas:
        yield f"Pool {name} has no replica."
    states = Counter(replica["state"] for replica in replicas if replica["state"] != "up")
    if states:
        told = _listed(f"{count} {state}" for state, count in states.items())
        yield f"Pool {name} has replicas that are not up: {told} of {len(replicas)}."
    if queue is not None and 2 * sum(queue["waiting"].values()) > queue["max_waiting"] > 0:
        yield f"Pool {name}: {sum(queue['waiting'].values())} of {queue['max_waiting']} places to wait are taken."
    if pool["retries_left"] < 1:
        yield f"Pool {name} has no retries left."


def _of_store(store: _Part) -> Iterator[str]:
    ages = [settings["age_s"] for settings in store["settings"]]
    if ages and max(ages) > CURRENT_S:
        yield f"The limit store has said nothing for {max(ages):.0f} s."
    for settings in store["settings"]:
        if settings["left_out"]:
            yield f"Of the {settings['settings']} that the store keeps, {settings['left_out']} cannot hold."
    if store["journal_pending"]:
        yield f"{store['journal_pending']} settlements wait in the journal for the store."
    if store["settlements_dropped"]:
        yield f"{store['settlements_dropped']} settlements were dropped: those calls stay charged as reserved."


def _listed(words: Iterable[object]) -> str:
    return ", ".join(map(str, words))
