"""Most events of a stream are alike but for their text: told by what stands before and behind it, unread. Pure.

One comparison and one search, where splitting an event off and looking for what it may hold takes four times as long.
"""

import re

# The first string that is not empty among those that hold generated text, and its end.
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)":"(?=[^"])')
_END_OF_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"')
_USAGE = b',"usage":{'
_CLOSE = b"}\n\n"
_BACKSLASH = ord("\\")
_NOTHING = b"\0"  # no event begins with it
# How often something is learnt of one stream: where each event has other logprobs, nothing ever is.
_LESSONS = 8


class Alike:
    """What the running events of one stream with one choice have in common."""

    __slots__ = ("_before", "_behind", "_lessons", "_text_at")

    def __init__(self) -> None:
        self._before = _NOTHING
        self._behind = b""
        self._text_at = 1
        self._lessons = _LESSONS

    def end(self, data: bytes) -> int:
        """Return where the common part ends if `data` is one whole event like those before, with some text; else 0.

        Texts with a quote or a backslash at their end are left to others to read.
        Behind it stands `,"usage":{…}` without objects within, unread, or nothing, and then `}` and the blank line.
        """
        if not data.startswith(self._before):
            return 0
        at = data.find(b'"', self._text_at)
        if at <= self._text_at or data[at - 1] == _BACKSLASH or not data.startswith(self._behind, at):
            return 0
        at += len(self._behind)
        last = len(data) - len(_CLOSE)
        if at != last and not (data.startswith(_USAGE, at) and data.find(b"}", at) == last - 1):
            return 0
        one = data.endswith(_CLOSE) and data.find(b"\n") == len(data) - 2 and b"\r" not in data
        return at if one else 0

    def forget(self) -> None:
        """Take nothing for alike until the next lesson."""
        self._before = _NOTHING

    def learn(self, event: bytes) -> None:
        """Take in a running event that bears text, and is one line of JSON."""
        if not self._lessons:
            return
        self._lessons -= 1
        begun = _TEXT.search(event)
        ended = _END_OF_TEXT.match(event, begun.end()) if begun else None
        if begun is None or ended is None:
            return
        usage = event.find(_USAGE, ended.end())
        behind = event[ended.end() - 1 : len(event) - len(_CLOSE) if usage < 0 else usage]
        if event.endswith(_CLOSE) and behind.endswith((b"]", b"}", b"null")):
            self._before, self._behind, self._text_at = event[: begun.end()], behind, begun.end()
