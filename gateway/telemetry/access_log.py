"""CallRecord in, one line out. It holds no prompt, no token text, and no address but the replica's `host:port`."""

from collections.abc import Callable
from functools import lru_cache

from gateway import config
from gateway.telemetry.lines import FRAGMENT, NULL, formatter, fragment, quoted, time, token, utc
from gateway.telemetry.record import CallRecord

# As many callers and replicas have their part of a line ready, of some 200 bytes each (3 KB where every name is as long
# as a token may make it). A line of any other costs some microseconds more.
_READY = 2000

# Most lines: JSON, of a call that an engine answered. One template takes two thirds of what tokens and their line take.
_ANSWERED = (
    '{"time":"%s.%03dZ","inference_id":%s%s,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d,'
    '"reasoning_tokens":%d%s,"duration_ms":%.3f,"overhead_ms":%.3f,"waited_ms":null,"first_byte_ms":%.3f,"error_code":null}\n'
)


class AccessLog:
    """Hands `write` one line for each call; `write` must neither wait nor fail (`LineWriter.write`)."""

    def __init__(self, logging: config.Logging, write: Callable[[str], object]) -> None:
        tokens = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
        times = ("duration_ms", "overhead_ms", "waited_ms", "first_byte_ms")
        self._is_text = logging.format == "text"
        self._line = formatter(logging, "time", "inference_id", FRAGMENT, *tokens, FRAGMENT, *times, "error_code")
        self._called = _ready(logging, "endpoint", "model", "tenant", "key", "status", "outcome", "stream")
        names = ("usage_source", "replica", "pool", "attempts", "failed_by", "broken_by", "fallback_for")
        self._answered = _ready(logging, *names)
        self._write = write

    def record(self, call: CallRecord) -> None:
        """Write one call's line. `time` is when the call ended; fields without a value are null, in text left out."""
        usage, overhead_s, first_byte_s = call.usage, call.overhead_s, call.first_byte_s
        called = self._called(call.endpoint, call.model, call.tenant, call.key, call.status, call.ending, call.stream)
        source = usage.source if usage else None
        answered = self._answered(
            source, call.replica, call.pool, call.attempts, call.failed_by, call.broken_by, call.fallback_for
        )
        eventful = call.error_code is not None or call.waited_s is not None
        if usage is None or overhead_s is None or first_byte_s is None or eventful or self._is_text:
            self._write(self._any_line(call, called, answered))
            return
        second, millisecond = utc(call.started + call.duration_s)
        prompt, completion, cached, reasoning, _ = usage
        self._write(
            _ANSWERED
            % (
                second,
                millisecond,
                quoted(call.inference_id),
                called,
                prompt,
                completion,
                cached,
                reasoning,
                answered,
                call.duration_s * 1000,
                overhead_s * 1000,
                first_byte_s * 1000,
            )
        )

    def _any_line(self, call: CallRecord, called: str, answered: str) -> str:
        usage = call.usage
        return self._line(
            (
                time(call.started + call.duration_s),
                quoted(call.inference_id),
                called,
                *([str(count) for count in usage[:4]] if usage else (NULL,) * 4),
                answered,
                _milliseconds(call.duration_s),
                _milliseconds(call.overhead_s),
                _milliseconds(call.waited_s),
                _milliseconds(call.first_byte_s),
                quoted(call.error_code),
            )
        )


def _ready(logging: config.Logging, *names: str) -> Callable[..., str]:
    spell = fragment(logging, *names)

    @lru_cache(_READY)
    def ready(*values: str | int | None) -> str:
        return spell(tuple(token(value) for value in values))

    return ready


def _milliseconds(seconds: float | None) -> str:
    return NULL if seconds is None else f"{seconds * 1000:.3f}"
