"""What /admin/status says in, titled tables of text out: for the page and for `gateway status` alike. No I/O."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.routing.orders.rows import ROWS
from gateway.routing.status import STATES

_Part = dict[str, Any]

# Of so many replicas a pool's table tells, those that take no calls first. A pool may have ten thousand.
_MOST_ROWS = 250
# A command that is longer than this is left out: no name of a real host is.
_LONGEST_COMMAND = 600

_REPLICA = ("replica", "state", "in flight", "weight", "tokens/s", "engine", "from")


@dataclass(frozen=True, slots=True)
class Table:
    """What is said of one thing in a few words, then row by row.

    Each row may have a mark, which is a word of ours, and a command that is to be pasted for it, or "".
    """

    title: str
    said: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    marks: Sequence[str] = ()
    commands: Sequence[str] = ()


def tables(status: _Part) -> list[Table]:
    """Return them in the order in which they are looked at; none that would say nothing."""
    file = status["configs"][0]["file"] if status["configs"] else None
    return [
        Table("Calls", [_words(status["calls"])]),
        *([] if status["workers"] is None else [Table("Workers", [_words(status["workers"])])]),
        *(_pool(pool, file) for pool in status["pools"]),
        *_orders(status),
        *_amiss(status["amiss"]),
        _store(status["store"]),
        *_issuers(status["issuers"]),
        *_configs(status["configs"]),
    ]


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())


def _pool(pool: _Part, config: str | None) -> Table:
    replicas = sorted(pool["replicas"], key=lambda one: STATES.index(one["state"]))
    shown = replicas[:_MOST_ROWS]
    said = [", ".join(_of_pool(pool))]
    said += [f"{one['replica']} is leaving, {one['in_flight']} in flight" for one in pool["leaving"]]
    said += [f"{len(replicas) - len(shown)} replicas more are in /admin/pools"] if len(replicas) > len(shown) else []
    return Table(
        f"Pool {pool['name']}",
        said,
        _REPLICA,
        [_replica(one) for one in shown],
        [one["state"] for one in shown],
        [_command("undrain" if one["drained"] else "drain", pool["name"], one["url"], config) for one in shown],
    )


def _of_pool(pool: _Part) -> Iterator[str]:
    yield pool["engine"]
    yield f"{pool['in_flight']} in flight"
    if (queue := pool["queue"]) is not None:
        waiting = ", ".join(f"{priority} {calls}" for priority, calls in queue["waiting"].items())
        yield f"waiting ({waiting}) of {queue['max_waiting']} that may, for {queue['max_wait_s']:g} s at most"
    yield f"{pool['retries_left']:g} retries left"


def _replica(one: _Part) -> tuple[object, ...]:
    most = "" if one["max_in_flight"] is None else f" of {one['max_in_flight']}"
    less = "" if one["weight"] == one["full_weight"] else f" of {one['full_weight']:g}"
    return (
        one["replica"],
        _state(one),
        f"{one['in_flight']}{most}",
        f"{one['weight']:g}{less}",
        one["tokens_per_second"] or "",
        _load(one["load"]),
        one["from"],
    )


def _state(one: _Part) -> str:
    """Return its state, for how long still where that is known, and where workers find otherwise."""
    left_s = {"resting": one["rests_for_s"], "warming_up": one["warms_up_for_s"]}.get(one["state"])
    told = one["state"] + ("" if left_s is None else f" {left_s:g} s")
    other = [f"{each['worker']} {each['state']}" for each in one.get("workers", ()) if each["state"] != one["state"]]
    return f"{told} (worker {', '.join(other)})" if other else told


def _load(load: _Part | None) -> str:
    if load is None:
        return ""
    cache = "" if load["cache_used"] is None else f", cache {load['cache_used']:.0%}"
    return f"{load['running']:g} running, {load['waiting']:g} waiting{cache}, {load['age_s']:g} s ago"


def _command(word: str, pool: str, url: str, config: str | None) -> str:
    """Return a command that means what it says wherever it is pasted; nothing where it could look like another."""
    if config is None:  # a trial: no command could find its store
        return ""
    command = shlex.join(["gateway", "replica", word, "--config", config, "--pool", pool, "--url", url])
    return command if command.isprintable() and len(command) <= _LONGEST_COMMAND else ""


def _orders(status: _Part) -> Iterator[Table]:
    if status["orders"]:
        said = [] if status["current"] else ["The store does not answer: these are the last known."]
        yield Table("Orders", said, ROWS.columns, [*map(ROWS.texts, status["orders"])])


def _amiss(amiss: _Part) -> Iterator[Table]:
    since = amiss["since"]
    header = ("by", "what", "lately" if since is None else f"since {since}", "since the start")
    found = sorted(amiss["data"], key=lambda one: (-(one["lately"] or 0), -one["total"]))
    rows = [
        (one["by"], one["what"], "" if one["lately"] is None else one["lately"], one["total"])
        for one in found[:_MOST_ROWS]
    ]
    if rows:
        yield Table("Calls that did not end well", (), header, rows)


def _store(store: _Part) -> Table:
    failures = _words(store["failures"]) or "none"
    said = [
        f"failures since the start: {failures}",
        f"journal: {store['journal_pending']} wait, {store['settlements_dropped']} were dropped",
    ]
    rows = [(one["settings"], one["in_force"], one["left_out"], f"{one['age_s']:g} s ago") for one in store["settings"]]
    return Table("Store", said, ("settings", "in force", "left out", "asked"), rows)


def _issuers(issuers: Iterable[_Part]) -> Iterator[Table]:
    rows = [(one["issuer"], f"{one['age_s']:g} s", one["failed"]) for one in issuers]
    if rows:
        yield Table("Key sets", (), ("issuer", "age", "fetches that failed since the start"), rows)


def _configs(configs: Iterable[_Part]) -> Iterator[Table]:
    """Say once what several workers say."""
    rows: dict[object, Sequence[object]] = {}
    for config in configs:
        last = config["last_reload"]
        told = "" if last is None else f"{last['result']} at {last['at']}: {last['because']}"
        row = (config["file"] or "none", (config["sha256"] or "")[:16], config["loaded_at"], told)
        rows.setdefault((config["sha256"], last is not None and last["result"]), row)
    if rows:
        yield Table("Config", (), ("file", "SHA-256", "holds since", "last read again"), [*rows.values()])
