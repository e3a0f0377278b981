"""Comments to the client of a stream whose engine says nothing for long: proxies in between cut what looks dead.

A comment says nothing to who reads events (WHATWG HTML, 9.2.6). The first one takes the head with it, before it is
known whether any replica will answer: what goes wrong from then on can be told in the stream only.
"""

from gateway.client.answer import Answer, Fields

COMMENT = b": keep-alive\n\n"
# What every stream has in its head.
STREAM_FIELDS: Fields = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
# Of a head that goes out before any engine's: it is what all of them say.
_CONTENT_TYPE: Fields = "Content-Type: text/event-stream; charset=utf-8\r\n"


class KeepAlive:
    """Sends a comment where a client got nothing for `every_s`, in all attempts of its call. Times are the loop's."""

    __slots__ = ("_answer", "_every_s", "_fields", "_last_at")

    def __init__(self, answer: Answer, fields: Fields, *, every_s: float, now: float) -> None:
        self._answer = answer
        self._fields = fields
        self._every_s = every_s
        self._last_at = now

    def comment(self, now: float, *, quiet_since: float = 0.0) -> None:
        """Send a comment if it is time. To be called between events only; `quiet_since`: when the last one came."""
        if now < max(quiet_since, self._last_at) + self._every_s or self._answer.connection.writing_paused:
            return
        self._last_at = now
        if not self._answer.sent_status:
            self._answer.begin(200, _CONTENT_TYPE + STREAM_FIELDS + self._fields)
        self._answer.send(COMMENT)
