"""Bytes of an SSE stream in, facts about it out: its usage, and whether it was whole. No I/O; never changes a byte.

Events are found as bytes at any split and with any line ending (WHATWG HTML 9.2.6). Decoding JSON costs more than all
else here, so only an event that may hold usage, an error or a finish reason is decoded.
"""

import re
from typing import Any

import jiter

from gateway.calls.usage import Usage
from gateway.relay.tally import Tally

# An event larger than this is relayed but no longer counted: what is kept of a stream is bounded.
MAX_EVENT_BYTES = 8 * 2**20

# Two line ends in a row. Atomic groups: a CRLF must never be read as two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"


class Scanner:
    """Watches one stream.

    `choices` is how many choices the answer carries: with a finish reason for each, a stream without `[DONE]` is whole.
    """

    __slots__ = (
        "_choices",
        "_finished",
        "_pending",
        "_started",
        "_tally",
        "content_events",
        "done",
        "error",
        "events",
        "overflowed",
    )

    def __init__(self, *, choices: int = 1, prompts: int = 1, summed_usage: bool = False) -> None:
        self.events = 0
        self.content_events = 0
        self.done = False
        self.error: dict[str, Any] | None = None
        self.overflowed = False
        self._choices = choices
        self._finished: set[int] = set()
        self._tally = Tally(summed=summed_usage, prompts=prompts, choices=choices)
        self._pending = b""
        self._started = False

    @property
    def usage(self) -> Usage | None:
        """What the engine has said so far of the usage."""
        return self._tally.usage()

    @property
    def complete(self) -> bool:
        """Whether what came is a whole answer: `[DONE]`, or a finish reason for every choice; and no error."""
        return self.error is None and (self.done or len(self._finished) >= self._choices)

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes so far end with an event (or are none): what follows starts a new one."""
        return not self._pending.strip(b"\r\n")

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the stream."""
        if self.overflowed:
            return
        if not self._started:
            data = self._without_bom(self._pending + data)
            self._pending = b""
            if not self._started:
                self._pending = data
                return
        scanned = 0
        if self._pending:
            scanned = max(0, len(self._pending) - 3)  # a blank line is at most four bytes: none of it lies before
            data = self._pending + data
        elif data.endswith(b"\n\n") and b"\r" not in data:
            # What engines send: whole events with LF. Everything else takes the general way below.
            for block in data[:-2].split(b"\n\n"):
                self._event(block)
            return
        start = 0
        for boundary in _BLANK_LINE.finditer(data, scanned):
            self._event(data[start : boundary.start()])
            start = boundary.end()
        self._pending = data[start:] if start else data
        if len(self._pending) > MAX_EVENT_BYTES:
            self.overflowed = True
            self._pending = b"x"  # not at a boundary

    def end(self) -> None:
        """The stream has ended: a last event that lacks only its blank line is counted too."""
        if self._pending and not self.overflowed:
            self._event(self._pending)

    def _without_bom(self, data: bytes) -> bytes:
        if len(data) < len(_BOM) and _BOM.startswith(data):
            return data
        self._started = True
        return data.removeprefix(_BOM)

    def _event(self, block: bytes) -> None:
        """Take in one event: its lines, without the blank line that ends it."""
        if block.startswith(b"data: {") and b"\n" not in block and b"\r" not in block:
            payload = block[6:]
        else:
            payload = _data(block)
            if not payload:
                return
        self.events += 1
        if payload.startswith(_DONE):
            self.done = True
            return
        if _bears_content(payload):
            self.content_events += 1
        if b'"usage"' in payload or b'"error"' in payload or _bears_finish_reason(payload):
            self._decode(payload)

    def _decode(self, payload: bytes) -> None:
        try:
            event = jiter.from_json(payload)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        error = event.get("error")
        if error:
            self.error = error if isinstance(error, dict) else {"message": str(error)}
        self._tally.note(event)
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("finish_reason"):
                index = choice.get("index")
                self._finished.add(index if isinstance(index, int) else 0)


def _data(block: bytes) -> bytes:
    """Return an event's data: the values of its `data` lines, joined by LF. Other fields and comments say nothing."""
    values = []
    for line in _LINE_END.split(block):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values)


def _bears_finish_reason(payload: bytes) -> bool:
    """Whether a finish reason may stand in these bytes; running events say null."""
    at = payload.find(b'"finish_reason"')
    while at >= 0:
        at += len(b'"finish_reason"')
        if not payload.startswith((b":null", b": null", b':""'), at):
            return True
        at = payload.find(b'"finish_reason"', at)
    return False


def _bears_content(payload: bytes) -> bool:
    """Whether these bytes hold generated text: the lower bound of what an engine without running totals generated."""
    for key in (b'"content":', b'"text":', b'"reasoning_content":', b'"reasoning":'):
        at = payload.find(key)
        if at >= 0 and not payload.startswith((b'""', b' ""', b"null", b" null"), at + len(key)):
            return True
    return b'"tool_calls":[{' in payload
