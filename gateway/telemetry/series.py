"""What the path of a call counts with: plain numbers, made into Prometheus families at each scrape.

Only the event loop's thread writes, so nothing locks: counting costs a tenth of what the library's counters cost. A
scrape runs in another thread; it reads copies that one C call makes each (`dict(…)`, `list.copy()`), which the GIL
keeps whole. Between two copies a call may be counted: a sum may be a value ahead of its buckets, as the library's may.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_Family = TypeVar("_Family", bound=Metric)
_Number = TypeVar("_Number")

Labels = tuple[str | int, ...]
Counts = defaultdict[Labels, int]


class Histogram:
    """How many values fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last one is for what exceeds every bound
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value. A bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Labels) -> None:
        """Add what was counted so far to a scrape's family; where that is nothing, there is no series yet."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts.copy(), strict=True):
            total += count
            buckets.append((str(bound), total))
        if total:
            family.add_metric(_words(labels), buckets, self._sum)


class Histograms(dict[Labels, Histogram]):
    """The histograms of one family by label values, each made when it is first asked for."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, labels: Labels) -> Histogram:
        histogram = self[labels] = Histogram(self._bounds)
        return histogram

    def fill(self, family: HistogramMetricFamily) -> None:
        """Add all of them to a scrape's family."""
        for labels, histogram in dict(self).items():
            histogram.add_to(family, labels)


class Level:
    """How much of something is under way now."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def leave(self) -> None:
        """Count one less."""
        self.now -= 1


class Levels(dict[Labels, Level]):
    """The levels of one gauge by label values, each made when it is first asked for.

    Who enters holds the level itself: whatever becomes of its label meanwhile, it is this one that it leaves.
    """

    def __missing__(self, labels: Labels) -> Level:
        level = self[labels] = Level()
        return level

    def enter(self, labels: Labels) -> Callable[[], None]:
        """Count one more; what is returned is to be called once, when it has ended."""
        level = self[labels]
        level.now += 1
        return level.leave

    def numbers(self) -> Iterator[tuple[Labels, int]]:
        """Yield each with its label values; from any thread."""
        for labels, level in dict(self).items():
            yield labels, level.now


class Scraped(Collector, Generic[_Family]):
    """One family: at each scrape `fill` is handed what `empty` returns, in the scrape's thread."""

    def __init__(self, empty: Callable[[], _Family], fill: Callable[[_Family], None]) -> None:
        self._empty = empty
        self._fill = fill

    def describe(self) -> Iterator[_Family]:
        """Yield the family without samples."""
        yield self._empty()

    def collect(self) -> Iterator[_Family]:
        """Yield the family as it is now."""
        family = self._empty()
        self._fill(family)
        yield family


def forget(numbers: dict[Labels, _Number], place: int, gone: Container[str | int]) -> None:
    """Drop what was counted under labels that have one of `gone` in that place."""
    for labels in [labels for labels in numbers if labels[place] in gone]:
        del numbers[labels]


def add(family: CounterMetricFamily | GaugeMetricFamily, numbers: Iterable[tuple[Labels, float]]) -> None:
    """Add each number under its label values to a scrape's family."""
    for labels, number in numbers:
        family.add_metric(_words(labels), number)


def _words(labels: Labels) -> list[str]:
    return [str(label) for label in labels]
