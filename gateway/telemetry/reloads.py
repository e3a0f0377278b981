"""How often the config was read again, with which result, and since when the one that holds does."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class Reloads:
    """`gateway_config_reloads_total`, `gateway_config_reload_failed` and `gateway_config_loaded_timestamp_seconds`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = Counter(
            "gateway_config_reloads_total",
            "Times that the config was read again, by result; failed: nothing has changed.",
            ("result",),
            registry=registry,
        )
        # Both from the start, so that the first failure is an increase.
        self._ok, self._failed = counter.labels("ok"), counter.labels("failed")
        self._last_failed = Gauge(
            "gateway_config_reload_failed",
            "1 where the config was last read again in vain: the one before holds.",
            registry=registry,
        )
        self._loaded_at = Gauge(
            "gateway_config_loaded_timestamp_seconds",
            "When the config that holds was read, in Unix time.",
            registry=registry,
        )

    def loaded(self, at: float) -> None:
        """Take note of the config that the process has started with, `at` seconds since the epoch."""
        self._loaded_at.set(at)

    def reloaded(self, at: float) -> None:
        """Count a config that was read again, and holds since `at`."""
        self._ok.inc()
        self._last_failed.set(0)
        self._loaded_at.set(at)

    def refused(self) -> None:
        """Count one that cannot hold."""
        self._failed.inc()
        self._last_failed.set(1)
