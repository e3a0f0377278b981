"""Figures of several processes in, those of one gateway out. No I/O.

What only grows is added up, and goes on counting when its process has ended; a gauge is of processes that run.
"""

from collections.abc import Callable, Iterable
from statistics import fmean

from gateway.telemetry.figures import Family, Figures, Place

Rule = Callable[[list[float]], float]

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


def _merged(name: str, family: Family, values: dict[Place, list[float]]) -> Family:
    rule = sum if family.kind in _GROWS else GAUGES.get(name, sum)
    return Family(family.kind, family.meaning, {place: rule(each) for place, each in values.items()})
