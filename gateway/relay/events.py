"""Bytes of an SSE stream in, whole events out, each with the blank line that ends it. Never changes or drops a byte.

Events are found at any split and with any line ending, as WHATWG HTML 9.2.6 has them. A network read carries no
meaning: an event may come in many, or many in one.
"""

import re
from itertools import pairwise

# What is kept of an event that is not at its end. Beyond it the stream is relayed but no longer understood.
MAX_EVENT_BYTES = 8 * 2**20

# Two line ends in a row. Atomic groups: a CRLF must never be read as two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_BLANK_LINE = 4
_LF = 10


class Events:
    """Splits one stream. `pending` is an event whose end has not come; `overflowed`: it was too large.

    An event is there with the CR that may end it. If the LF of that line end comes in a read of its own, then that LF
    is given as an event.
    """

    __slots__ = ("_after_cr", "overflowed", "pending")

    def __init__(self) -> None:
        self.pending = bytearray()
        self.overflowed = False
        self._after_cr = False

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes so far end with an event (or are none): what follows starts a new one."""
        return not self.overflowed and not self.pending.strip(b"\r\n")

    def feed(self, data: bytes) -> list[bytes]:
        """Take in the next bytes and return the events that they complete."""
        if self.overflowed:
            return []
        after_cr, self._after_cr = self._after_cr, False
        if after_cr and data.startswith(b"\n"):
            return [b"\n", *self.feed(data[1:])]
        if self.pending:
            unread = max(0, len(self.pending) + 1 - _LONGEST_BLANK_LINE)  # no blank line ends before
            self.pending += data
            # Only what is new is looked at: all of a picture of 4 MiB with each small read would hold up every stream.
            if not _holds_blank_line(self.pending[unread:]):
                self.overflowed = len(self.pending) > MAX_EVENT_BYTES
                return []
            data = bytes(self.pending)
        events, rest = _split(data)
        self.pending = bytearray(rest)
        self._after_cr = not rest and bool(events) and events[-1].endswith(b"\r")
        self.overflowed = len(rest) > MAX_EVENT_BYTES
        return events


def _holds_blank_line(data: bytearray) -> bool:
    return b"\n\n" in data or (b"\r" in data and _BLANK_LINE.search(data) is not None)


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the events in `data`, and what follows the last."""
    if b"\r" not in data:  # what engines send, many in a read
        *events, rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], rest
    bounds = [0, *[boundary.end() for boundary in _BLANK_LINE.finditer(data)]]
    return [data[start:end] for start, end in pairwise(bounds)], data[bounds[-1] :]


def data_of(event: bytes) -> bytes:
    """Return an event's data: the values of its `data` lines, joined by LF. Other fields and comments say nothing."""
    if is_one_line_of_json(event):
        return event[6:]  # JSON does not mind the line ends behind it
    values = []
    for line in _LINE_END.split(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values)


def is_one_line_of_json(event: bytes) -> bool:
    """Whether these bytes are one event as engines write it: a `data` line with an object, and LF twice."""
    end = len(event) - 2
    return event.startswith(b"data: {") and event.find(b"\n") == end and event[-1] == _LF and b"\r" not in event
