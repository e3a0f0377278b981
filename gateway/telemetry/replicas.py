"""The replicas' gauges, read from routing at each scrape: nothing is kept twice and the path of a call pays nothing."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_LABELS = ("pool", "replica")


class ReplicaState(NamedTuple):
    """One replica as it is now: the pool's configured name, the replica's `host:port`, and how it does.

    `running`, `waiting` and `cache_used` are what its engine tells of itself, where it is asked.
    """

    pool: str
    replica: str
    up: bool
    in_flight: int
    breaker_open: bool
    drained: bool = False
    running: float | None = None
    waiting: float | None = None
    cache_used: float | None = None


class ReplicaCollector(Collector):
    """What is shown of each replica; one that leaves the config leaves the next scrape."""

    def __init__(self, read: Callable[[], Iterable[ReplicaState]]) -> None:
        self._read = read

    def describe(self) -> tuple[GaugeMetricFamily, ...]:
        """Return the families without samples: registering must not read replicas that are not made yet."""
        return (
            GaugeMetricFamily("gateway_replica_up", "1 where probes find the replica up, else 0.", labels=_LABELS),
            GaugeMetricFamily("gateway_replica_in_flight", "Calls that the replica holds now.", labels=_LABELS),
            GaugeMetricFamily(
                "gateway_breaker_open", "1 where faults of calls have opened the replica's breaker.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "gateway_replica_drained", "1 where operators ordered that no calls go to the replica.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "gateway_engine_calls",
                "Calls that the engine says it has, whoever sent them, where it is asked.",
                labels=(*_LABELS, "state"),
            ),
            GaugeMetricFamily(
                "gateway_engine_cache_used", "Share of its KV cache that the engine says is used.", labels=_LABELS
            ),
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families as the replicas are now."""
        families = up, in_flight, breaker_open, drained, engine_calls, cache_used = self.describe()
        for state in self._read():
            up.add_metric((state.pool, state.replica), state.up)
            in_flight.add_metric((state.pool, state.replica), state.in_flight)
            breaker_open.add_metric((state.pool, state.replica), state.breaker_open)
            drained.add_metric((state.pool, state.replica), state.drained)
            for word, calls in (("running", state.running), ("waiting", state.waiting)):
                if calls is not None:
                    engine_calls.add_metric((state.pool, state.replica, word), calls)
            if state.cache_used is not None:
                cache_used.add_metric((state.pool, state.replica), state.cache_used)
        yield from families
