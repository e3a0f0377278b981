"""The replicas' gauges, read from routing at each scrape: nothing is kept twice and the path of a call pays nothing."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_LABELS = ("pool", "replica")


class ReplicaState(NamedTuple):
    """One replica as it is now: the pool's configured name, the replica's `host:port`, and how it does."""

    pool: str
    replica: str
    up: bool
    in_flight: int


class ReplicaCollector(Collector):
    """`gateway_replica_up` and `gateway_replica_in_flight`; a replica that leaves the config leaves the next scrape."""

    def __init__(self, read: Callable[[], Iterable[ReplicaState]]) -> None:
        self._read = read

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        """Return the two families without samples: registering must not read replicas that are not made yet."""
        return (
            GaugeMetricFamily("gateway_replica_up", "1 where the replica is given calls, else 0.", labels=_LABELS),
            GaugeMetricFamily("gateway_replica_in_flight", "Calls that the replica holds now.", labels=_LABELS),
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield both families as the replicas are now."""
        up, in_flight = self.describe()
        for state in self._read():
            up.add_metric((state.pool, state.replica), state.up)
            in_flight.add_metric((state.pool, state.replica), state.in_flight)
        yield up
        yield in_flight
