"""Figures in, a Markdown table out: medians over the rounds, and ratios of them to the reference's. No I/O."""

import math
import statistics
from collections.abc import Mapping

from bench.rounds import Figures, Measure

Columns = Mapping[Measure, str]

REQUESTS: Columns = {
    "small": "µs/request 0.9 KB",
    "large": "µs/request 20 KB",
    "event": "µs/event",
    "burst": "µs/event in a burst",
    "p50": "added p50 µs",
    "p99": "added p99 µs",
    "rss": "RSS MiB",
}
STREAMS: Columns = {
    "event": "µs/event",
    "delay50": "delay p50 µs",
    "delay99": "delay p99 µs",
    "p50": "added p50 µs",
    "p99": "added p99 µs",
    "memory": "RSS KiB/stream",
    "busy": "engine, load % of a core",
}
LIMITER: Columns = {
    "rate": "calls/s",
    "small": "µs/call",
    "store": "store µs/call",
    "scripts": "scripts/call",
    "trips": "round trips/call",
    "delay50": "latency p50 µs",
    "delay99": "latency p99 µs",
}
IDENTITY: Columns = {
    "rate": "calls/s",
    "delay50": "latency p50 µs",
    "delay99": "latency p99 µs",
}
_COMPARED: tuple[Measure, ...] = ("small", "large", "event", "burst")

_DECIMALS: Mapping[Measure, int] = {"event": 1, "burst": 1, "scripts": 2, "trips": 2}


def table(figures: Mapping[str, Figures], columns: Columns, *, reference: str, rows_are: str = "proxy") -> str:
    """Return the table, a row for each of `rows_are`.

    CPU figures carry their ratio to the reference's in brackets, where that was measured.
    """
    rows = [[rows_are, *columns.values(), "answers", "bad"]]
    for name, one in figures.items():
        cells = [_cell(one, measure, figures.get(reference)) for measure in columns]
        rows.append([name, *cells, str(one.answers.good), str(one.answers.bad)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(_aligned(row, widths)) + " |" for row in rows]
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def median(figures: Figures, measure: Measure) -> float:
    """Return the median over the rounds; not a number where nothing was measured."""
    values = figures.values.get(measure)
    return statistics.median(values) if values else math.nan


def _cell(figures: Figures, measure: Measure, reference: Figures | None) -> str:
    value = median(figures, measure)
    if math.isnan(value):
        return "-"
    shown = f"{value:.{_DECIMALS.get(measure, 0)}f}"
    if measure not in _COMPARED or reference is None:
        return shown
    return f"{shown} ({value / median(reference, measure):.2f})"


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
