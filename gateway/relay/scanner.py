"""Events of an answer in, facts about it out: its usage, and whether it was whole. No I/O; never changes a byte.

Decoding JSON costs more than all else here, so only an event that may hold usage, an error or a finish reason is
decoded, and of running totals only the last.
"""

from typing import Any

import jiter

from gateway.calls.usage import Usage
from gateway.relay.events import data_of
from gateway.relay.tally import Tally

_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"
_NULL = (b":null", b": null")


class Scanner:
    """Watches one stream.

    `choices` is how many choices the answer carries: with a finish reason for each, a stream without `[DONE]` is whole.
    """

    __slots__ = ("_choices", "_finished", "_latest", "_started", "_tally", "content_events", "done", "error", "events")

    def __init__(self, *, choices: int = 1, prompts: int = 1, summed_usage: bool = False) -> None:
        self.events = 0
        self.content_events = 0
        self.done = False
        self.error: dict[str, Any] | None = None
        self._choices = choices
        self._finished: set[int] = set()
        self._tally = Tally(summed=summed_usage, prompts=prompts, choices=choices)
        self._latest: bytes | None = None  # a running total that is not decoded, because the next may replace it
        self._started = False

    @property
    def usage(self) -> Usage | None:
        """What the engine has said so far of the usage."""
        if self._latest is not None:
            self._decode(self._latest)
        return self._tally.usage()

    @property
    def complete(self) -> bool:
        """Whether what came is a whole answer: `[DONE]`, or a finish reason for every choice; and no error."""
        return self.error is None and (self.done or len(self._finished) >= self._choices)

    def event(self, event: bytes) -> None:
        """Take in one event."""
        if not self._started:
            self._started = True
            event = event.removeprefix(_BOM)
        payload = data_of(event)
        if not payload:
            return
        self.events += 1
        if payload.startswith(_DONE):
            self.done = True
            return
        if _bears_content(payload):
            self.content_events += 1
        if b'"error"' in payload or _bears_finish_reason(payload):
            self._decode(payload)
        elif _bears_usage(payload):
            if self._choices == 1 and b'"choices":[{' in payload:
                self._latest = payload
            else:
                self._decode(payload)

    def _decode(self, payload: bytes) -> None:
        self._latest = None
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


def _bears_usage(payload: bytes) -> bool:
    at = payload.find(b'"usage"')
    return at >= 0 and not payload.startswith(_NULL, at + len(b'"usage"'))


def _bears_finish_reason(payload: bytes) -> bool:
    """Whether a finish reason may stand in these bytes; running events say null, TGI's an empty string."""
    at = payload.find(b'"finish_reason"')
    while at >= 0:
        at += len(b'"finish_reason"')
        if not payload.startswith((*_NULL, b':""'), at):
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
