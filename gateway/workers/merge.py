"""Figures of several processes in, those of one gateway out. No I/O.

What only grows is added up, and goes on counting when its process has ended; a gauge is of processes that run.
"""

from collections.abc import Callable, Container, Iterable
from statistics import fmean

from gateway.telemetry.figures import Family, Figures, Place
from gateway.telemetry.tenants import NOBODY, OTHER

Replica = tuple[str, str]
"""By the names of its pool and of its own."""

Rule = Callable[[list[float]], float]

_NO_TENANT = frozenset({NOBODY, OTHER})
_GROWS = frozenset({"counter", "histogram", "summary"})

# What several values of one gauge come to. For those that every process has of the same thing, the one that an alert
# would ask for; numbers of things are added up, as is any gauge that is not named here.
GAUGES: dict[str, Rule] = {
    "gateway_bytes_per_token": fmean,  # each learns from its own calls
    "gateway_breaker_open": max,
    "gateway_build_info": max,
    "gateway_config_loaded_timestamp_seconds": min,  # that of the worker which has held its config for longest
    "gateway_config_reload_failed": max,
    "gateway_discovery_age_seconds": max,
    "gateway_engine_cache_used": max,  # each asks the same engine
    "gateway_engine_calls": max,
    "gateway_journal_pending": sum,
    "gateway_key_set_age_seconds": max,
    "gateway_replica_drained": max,
    "gateway_replica_in_flight": sum,
    "gateway_replica_up": min,  # a replica that one process cannot reach is not up
    "gateway_requests_in_flight": sum,
    "gateway_settings_age_seconds": max,
    "gateway_settings_entries": max,
    "gateway_streams_open": sum,
    "gateway_waiting_calls": sum,
    "gateway_workers": sum,
    "process_max_fds": sum,
    "process_open_fds": sum,
    "process_resident_memory_bytes": sum,
    "process_start_time_seconds": min,  # the supervisor's
    "process_virtual_memory_bytes": sum,
    "python_info": max,
}


def merge(running: Iterable[Figures], ended: Figures) -> Figures:
    """Return what one scrape shows of processes that run, and of all that ended as `grown` had them."""
    found: dict[str, tuple[Family, dict[Place, list[float]]]] = {}
    for figures in (ended, *running):
        for name, family in figures.items():
            _, values = found.setdefault(name, (family, {}))
            for place, value in family.samples.items():
                values.setdefault(place, []).append(value)
    return {name: _merged(name, family, values) for name, (family, values) in found.items()}


def grown(figures: Iterable[Figures]) -> Figures:
    """Return of ended processes what goes on counting, as one: as much of many processes as of a few."""
    growing = [{name: one for name, one in each.items() if one.kind in _GROWS} for each in figures]
    return merge(growing, {})


def bounded(figures: Figures, label: Callable[[str], str]) -> Figures:
    """Return figures in which each tenant has the label of `label`: together, processes know more than one may."""
    return {name: _labelled(family, label) for name, family in figures.items()}


def here(ended: Figures, running: Iterable[Figures]) -> Figures:
    """Return of ended processes' figures those that are of no replica, or of one that a process has which runs."""
    up = [places for figures in running if (places := figures.get("gateway_replica_up"))]
    known = {_replica(labels) for family in up for _, labels in family.samples}
    if not known:  # none has said yet what it has
        return ended
    return {name: _of(family, known | {None}) for name, family in ended.items()}


def _labelled(family: Family, label: Callable[[str], str]) -> Family:
    first = next(iter(family.samples), None)
    if first is None or "tenant" not in dict(first[1]):
        return family
    samples: dict[Place, float] = {}
    for (sample, labels), value in family.samples.items():
        place = (
            sample,
            tuple([(one, label(word) if one == "tenant" and word not in _NO_TENANT else word) for one, word in labels]),
        )
        samples[place] = samples.get(place, 0.0) + value
    return Family(family.kind, family.meaning, samples)


def _of(family: Family, replicas: Container[Replica | None]) -> Family:
    kept = {place: value for place, value in family.samples.items() if _replica(place[1]) in replicas}
    return Family(family.kind, family.meaning, kept)


def _replica(labels: tuple[tuple[str, str], ...]) -> Replica | None:
    named = dict(labels)
    return (named["pool"], named["replica"]) if "replica" in named else None


def _merged(name: str, family: Family, values: dict[Place, list[float]]) -> Family:
    rule = sum if family.kind in _GROWS else GAUGES.get(name, sum)
    return Family(family.kind, family.meaning, {place: rule(each) for place, each in values.items()})
