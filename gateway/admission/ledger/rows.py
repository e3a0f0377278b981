"""Postings in, what they add up to by some columns out: as rows, and those as JSON, CSV or a table."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any

from gateway.admission.ledger.account import COUNTERS, Counter
from gateway.admission.ledger.posting import Posting
from gateway.admission.ledger.query import Column

# Values of the columns that are asked for: days and names.
Group = tuple[Any, ...]
Groups = Mapping[Group, Mapping[Counter, int]]
Row = dict[str, str | int]


async def add_up(postings: AsyncIterable[Posting], group_by: tuple[Column, ...]) -> Groups:
    """Return the sums of `postings`, by their values of `group_by`."""
    groups: defaultdict[Group, defaultdict[Counter, int]] = defaultdict(lambda: defaultdict(int))
    places = [Posting._fields.index(column) for column in group_by]
    async for posting in postings:
        groups[tuple([posting[place] for place in places])][posting.counter] += posting.figure
    return groups


def rows(groups: Groups, group_by: tuple[Column, ...]) -> Iterator[Row]:
    """Yield the groups in order: the columns of `group_by`, then every counter."""
    for group in sorted(groups):
        columns = zip(group_by, map(str, group), strict=True)
        yield {**dict(columns), **{counter: groups[group].get(counter, 0) for counter in COUNTERS}}


def as_page(shown: Iterable[Row]) -> bytes:
    """Return rows as OpenAI's lists are. Row by row: of one large piece no other thread would get a turn."""
    return b'{"object":"list","data":[%b]}' % b",".join(
        json.dumps(row, separators=(",", ":")).encode() for row in shown
    )


def as_json_lines(shown: Iterable[Row], _header: tuple[str, ...]) -> str:
    """Return an object a line."""
    return "".join(f"{json.dumps(row)}\n" for row in shown)


def as_csv(shown: Iterable[Row], header: tuple[str, ...]) -> str:
    """Return comma-separated values below a line of names (RFC 4180, but for line ends)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(row.values() for row in shown)
    return text.getvalue()


def as_table(shown: Iterable[Row], header: tuple[str, ...]) -> str:
    """Return aligned columns below their names: names to the left, figures to the right."""
    lines = [header, *[tuple([_printable(cell) for cell in row.values()]) for row in shown]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = len(header) - len(COUNTERS)
    return "".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + "\n"
        for line in lines
    )


def _printable(cell: str | int) -> str:
    text = str(cell)
    return text if text.isprintable() else ascii(text)[1:-1]
