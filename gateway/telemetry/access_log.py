"""CallRecord in, one line out. It holds no prompt, no token text, and no address but the replica's `host:port`."""

from collections.abc import Callable

from gateway import config
from gateway.calls.usage import Usage
from gateway.telemetry.lines import NULL, formatter, quoted, time
from gateway.telemetry.record import CallRecord

# Of the line's fields, those that tell a call's usage.
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "usage_source")


class AccessLog:
    """Hands `write` one line for each call; `write` must neither wait nor fail (`LineWriter.write`)."""

    def __init__(self, logging: config.Logging, write: Callable[[str], object]) -> None:
        called = ("time", "inference_id", "endpoint", "model", "tenant", "key", "status", "outcome", "stream")
        answered = ("replica", "pool", "attempts", "duration_ms", "overhead_ms", "first_byte_ms", "error_code")
        self._line = formatter(logging, *called, *_TOKENS, *answered)
        self._write = write

    def record(self, call: CallRecord) -> None:
        """Write one call's line. `time` is when the call ended; fields without a value are null, in text left out."""
        self._write(
            self._line(
                (
                    time(call.started + call.duration_s),
                    quoted(call.inference_id),
                    quoted(call.endpoint),
                    quoted(call.model),
                    quoted(call.tenant),
                    quoted(call.key),
                    str(call.status),
                    quoted(call.ending),
                    "true" if call.stream else "false",
                    *_usage(call.usage),
                    quoted(call.replica),
                    quoted(call.pool),
                    str(call.attempts),
                    _milliseconds(call.duration_s),
                    _milliseconds(call.overhead_s),
                    _milliseconds(call.first_byte_s),
                    quoted(call.error_code),
                )
            )
        )


def _usage(usage: Usage | None) -> tuple[str, ...]:
    if usage is None:
        return (NULL,) * len(_TOKENS)
    tokens = (usage.prompt, usage.completion, usage.cached, usage.reasoning)
    return (*map(str, tokens), quoted(usage.source))


def _milliseconds(seconds: float | None) -> str:
    return NULL if seconds is None else f"{seconds * 1000:.3f}"
