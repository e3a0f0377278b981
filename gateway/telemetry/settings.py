"""The gauges of settings that the store keeps, read at each scrape from those who follow them."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class SettingsState(NamedTuple):
    """One kind of settings as this process knows it, by a name of ours: how much of it holds, and how old that is."""

    settings: str
    in_force: int
    left_out: int
    age_s: float


class SettingsCollector(Collector):
    """`gateway_settings_entries` and `gateway_settings_age_seconds`."""

    def __init__(self, read: Callable[[], Iterable[SettingsState]]) -> None:
        self._read = read

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        """Return the two families without samples: registering must not read what is not made yet."""
        return (
            GaugeMetricFamily(
                "gateway_settings_entries",
                "Settings that the limit store keeps and this process knows; left_out: they cannot hold here.",
                labels=("settings", "state"),
            ),
            GaugeMetricFamily(
                "gateway_settings_age_seconds",
                "How long ago the limit store last said what settings hold.",
                labels=("settings",),
            ),
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield both families as they are now."""
        entries, ages = self.describe()
        for state in self._read():
            entries.add_metric((state.settings, "in_force"), state.in_force)
            entries.add_metric((state.settings, "left_out"), state.left_out)
            ages.add_metric((state.settings,), state.age_s)
        yield entries
        yield ages
