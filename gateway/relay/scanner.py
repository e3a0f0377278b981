"""Events of an answer in, facts about it out: its usage, and whether it was whole. No I/O; never changes a byte.

Decoding JSON costs more than all else here, so only an event that may hold usage, an error or a finish reason is
decoded, and of running totals only the last.
"""

from collections.abc import Mapping
from typing import Any

import jiter

from gateway.calls.usage import Usage
from gateway.relay.events import data_of
from gateway.relay.tally import Tally

_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"
_NULL = (b":null", b": null")
_RUNNING = b'"finish_reason":null'
_CONTENT_KEYS = (b'"content":', b'"text":', b'"reasoning_content":', b'"reasoning":')
_EMPTY = (b'""', b' ""', b"null", b" null")


class Scanner:
    """Watches one stream.

    `choices` is how many choices the answer carries: with a finish reason for each, a stream without `[DONE]` is whole.
    `done_may_lie`: of this engine `[DONE]` may stand behind an answer that has no text and no end. `began`: something
    came that is of an answer; an error is not, nor `[DONE]`, nor a usage alone. `content_events` and `running_total`,
    an event that tells one, may be kept up to date by who knows an event without showing it.
    """

    __slots__ = (
        "_aborted", "_choices", "_done_may_lie", "_finished", "_started", "_tally",
        "began", "content_events", "done", "error", "fingerprint", "running_total",
    )  # fmt: skip

    def __init__(
        self, *, choices: int = 1, prompts: int = 1, summed_usage: bool = False, done_may_lie: bool = False
    ) -> None:
        self.began = False
        self.content_events = 0
        self.done = False
        self.error: dict[str, Any] | None = None
        self.fingerprint = ""  # how the engine names its build
        self._aborted = False
        self._choices = choices
        self._done_may_lie = done_may_lie
        self._finished: set[int] = set()
        self._tally = Tally(summed=summed_usage, prompts=prompts, choices=choices)
        self.running_total: bytes | None = None  # a running total that is not decoded, because the next may replace it
        self._started = False

    @property
    def usage(self) -> Usage | None:
        """What the engine has said so far of the usage."""
        if self.running_total is not None:
            self._decode(self.running_total)
        return self._tally.usage()

    @property
    def complete(self) -> bool:
        """Whether what came is a whole answer: `[DONE]`, or a finish reason for every choice; and nothing broke off."""
        if self.error is not None or self._aborted:
            return False
        if len(self._finished) >= self._choices:
            return True
        return self.done and (self.content_events > 0 or not self._done_may_lie)

    def event(self, event: bytes) -> None:
        """Take in one event, however it is written."""
        if not self._started:
            event = event.removeprefix(_BOM)
        self._started = True
        data = data_of(event)
        if not data:
            return
        if data.startswith(_DONE):
            self.done = True
        else:
            self.line(data)

    def line(self, data: bytes) -> bool:
        """Take in one event whose data is one line of JSON; whether it is one of many, with nothing final in it."""
        self._started = True
        if _bears_content(data):
            self.content_events += 1
        running = self._choices == 1 and _RUNNING in data and b'"error"' not in data
        if running and b'"usage":{' in data:
            self.running_total = data
        elif not running and (b'"error"' in data or _bears_finish_reason(data) or _bears_usage(data)):
            self._decode(data)
            return False
        self.began = True
        return running

    def _decode(self, data: bytes) -> None:
        try:
            event = jiter.from_json(data.removeprefix(b"data: "))
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.began = True
            return
        error = event.get("error")
        if error:
            self.error = error if isinstance(error, dict) else {"message": str(error)}
        if self._tally.note(event):
            self.running_total = None  # what came before it is out of date
        self.fingerprint = event.get("system_fingerprint") or self.fingerprint
        choices = event.get("choices")
        self.began = self.began or not (error or choices == [])
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if broke_off(choice):
                self._aborted = True
            elif choice.get("finish_reason"):
                index = choice.get("index")
                self._finished.add(index if isinstance(index, int) else 0)


def broke_off(choice: Mapping[str, Any]) -> bool:
    """Whether the engine gave a choice up unfinished: so vLLM ends what is under way when it is stopped."""
    return choice.get("finish_reason") == "abort"


def _bears_usage(data: bytes) -> bool:
    at = data.find(b'"usage"')
    return at >= 0 and not data.startswith(_NULL, at + len(b'"usage"'))


def _bears_finish_reason(data: bytes) -> bool:
    """Whether a finish reason may stand in these bytes; running events say null, TGI's an empty string."""
    at = data.find(b'"finish_reason"')
    while at >= 0:
        at += len(b'"finish_reason"')
        if not data.startswith((*_NULL, b':""'), at):
            return True
        at = data.find(b'"finish_reason"', at)
    return False


def _bears_content(data: bytes) -> bool:
    """Whether these bytes hold generated text: the lower bound of what an engine without running totals generated."""
    for key in _CONTENT_KEYS:
        at = data.find(key)
        if at >= 0 and not data.startswith(_EMPTY, at + len(key)):
            return True
    return b'"tool_calls":[{' in data
