"""How often the config was read again, with which result, and since when the one that holds does."""

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class Reloads(Collector):
    """`gateway_config_reloads_total`, `gateway_config_reload_failed` and `gateway_config_loaded_timestamp_seconds`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ok = self._failed = 0
        self._last_failed = False
        self._loaded_at = 0.0
        registry.register(self)

    def loaded(self, at: float) -> None:
        """Take note of the config that the process has started with, `at` seconds since the epoch."""
        self._loaded_at = at

    def reloaded(self, at: float) -> None:
        """Count a config that was read again, and holds since `at`."""
        self._ok += 1
        self._last_failed = False
        self._loaded_at = at

    def refused(self) -> None:
        """Count one that cannot hold."""
        self._failed += 1
        self._last_failed = True

    def collect(self) -> tuple[CounterMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        """Return the families as they are now."""
        results = CounterMetricFamily(
            "gateway_config_reloads",
            "Times that the config was read again, by result; failed: nothing has changed.",
            labels=("result",),
        )
        # Both from the start, so that the first failure is an increase.
        results.add_metric(("ok",), self._ok)
        results.add_metric(("failed",), self._failed)
        last_failed = GaugeMetricFamily(
            "gateway_config_reload_failed",
            "1 where the config was last read again in vain: the one before holds.",
            value=self._last_failed,
        )
        loaded_at = GaugeMetricFamily(
            "gateway_config_loaded_timestamp_seconds",
            "When the config that holds was read, in Unix time.",
            value=self._loaded_at,
        )
        return results, last_failed, loaded_at
