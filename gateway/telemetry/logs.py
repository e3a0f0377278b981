"""The stdlib's log records as lines of the same format as the access log: one line a record, tracebacks in a field."""

import logging
from typing import Protocol

from gateway import config
from gateway.telemetry.lines import formatter, quoted, time, token

_HANDLER = "gateway"


class Stream(Protocol):
    """Where lines go: a text stream such as `sys.stderr`, or a `LineWriter`."""

    def write(self, line: str, /) -> object:
        """Take one line, newline included."""

    def flush(self) -> object:
        """Pass on what was taken."""


def configure(settings: config.Logging, stream: Stream, *, worker: int | None = None) -> None:
    """Send every logger's records to `stream`: the gateway's own from `settings.level` on, libraries' from warnings on.

    `worker`: which process of several says it. To be called again after a reload; it replaces only what it set itself.
    """
    handler = logging.StreamHandler(stream)
    handler.terminator = ""
    handler.set_name(_HANDLER)
    handler.setFormatter(_LineFormatter(settings, worker))
    root = logging.getLogger()
    for old in [one for one in root.handlers if one.get_name() == _HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger("gateway").setLevel(settings.level.upper())


class _LineFormatter(logging.Formatter):
    def __init__(self, settings: config.Logging, worker: int | None) -> None:
        super().__init__()
        self._worker = () if worker is None else (token(worker),)
        names = ("worker",) if self._worker else ()
        self._line = formatter(settings, "time", "level", "logger", *names, "message", "inference_id", "exception")

    def format(self, record: logging.LogRecord) -> str:
        # Given as `extra={"inference_id": …}`: what a client quotes finds what it was not told.
        inference_id: str | None = getattr(record, "inference_id", None)
        exception = self.formatException(record.exc_info) if record.exc_info else None
        head = (time(record.created), quoted(record.levelname.lower()), quoted(record.name))
        return self._line((*head, *self._worker, quoted(record.getMessage()), quoted(inference_id), quoted(exception)))
