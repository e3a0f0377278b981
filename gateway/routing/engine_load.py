"""What an engine tells of its own load, read from its Prometheus text. Bytes in, figures out; no I/O.

An engine's text has some hundred kilobytes, most of them histograms, and is read once a second for each replica. So
only the lines that matter are looked for: while all of it were parsed, no stream would go on.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.config.pools import EngineName


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Calls that an engine computes and those that wait for a place, whoever sent them.

    `cache_used` is the share of its KV cache that they hold, from 0 to 1; None where it does not tell.
    """

    running: float
    waiting: float
    cache_used: float | None = None


@dataclass(frozen=True, slots=True)
class _Names:
    """How an engine calls its figures. The first of `cache` that is there holds: they were renamed once."""

    running: bytes
    waiting: bytes
    cache: tuple[bytes, ...] = ()


_NAMES: Mapping[EngineName, _Names] = {
    "vllm": _Names(
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    "sglang": _Names(b"sglang:num_running_reqs", b"sglang:num_queue_reqs", (b"sglang:token_usage",)),
    "tgi": _Names(b"tgi_batch_current_size", b"tgi_queue_size"),
    "llamacpp": _Names(b"llamacpp:requests_processing", b"llamacpp:requests_deferred"),
}


def read_load(text: bytes, engine: EngineName) -> EngineLoad | None:
    """Return what `text` tells, or None where it lacks it. A server with several schedulers has a line for each."""
    names = _NAMES.get(engine)
    if names is None:
        return None
    running, waiting = [*_values(text, names.running)], [*_values(text, names.waiting)]
    if not running or not waiting:
        return None
    caches = [values for name in names.cache if (values := [*_values(text, name)])]
    cache_used = min(1.0, max(caches[0])) if caches else None
    return EngineLoad(sum(running), sum(waiting), cache_used)


def _values(text: bytes, name: bytes) -> Iterator[float]:
    """Yield the values of all samples of this very name."""
    at = text.find(name)
    while at >= 0:
        end = text.find(b"\n", at)
        line = text[at : end if end >= 0 else len(text)]
        behind = line[len(name) :]
        if (at == 0 or text[at - 1 : at] == b"\n") and behind[:1] in {b"{", b" ", b"\t"}:
            words = behind.rpartition(b"}")[2].split()
            value = _number(words[0]) if words else None
            if value is not None:
                yield value
        at = text.find(name, at + len(line))


def _number(word: bytes) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
