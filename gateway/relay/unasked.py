"""Usage asked of an engine on the client's behalf, and taken out of the stream again: pure bytes, no JSON is rewritten.

What asking changes differs from engine to engine (read in vLLM 0.32 and SGLang 0.5.23, seen with llama.cpp):

- all: an event without choices is added at the end. llama.cpp adds one per choice. An event without choices that tells
  no usage is the engine's own (what a filter or an extension says), and stays.
- vLLM, SGLang with running totals: each event gets a `usage`. Where SGLang would have written null, null is put back.
- vLLM: `system_fingerprint` moves from each event with a finish reason to the added event.
- llama.cpp: `timings` moves from each event with a finish reason to the event added behind it.
- OpenAI: each event gets `"usage":null`.
"""

import re
from dataclasses import dataclass

from gateway.calls.call import Call
from gateway.relay.events import data_of
from gateway.routing.replica import Replica

# A usage object in compact JSON: numbers, nulls and at most one level of details; it holds no strings but keys.
_OBJECT = rb"\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\}"
_RUNNING = re.compile(rb', ?"usage": ?(?:' + _OBJECT + rb"|null)")
_VALUE = re.compile(rb'(?<=,"usage":)' + _OBJECT)
_MEMBER = b',"usage"'
_NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_TELLS = re.compile(rb'"usage": ?\{')
_FINISHED = re.compile(rb'"finish_reason":"[^"]')
# How SGLang 0.5.23 begins a delta with the writer that leaves null out; the other one, and all before, write the role.
_SGLANG_WITHOUT_NULL = b'"delta":{"reasoning_content":'
# What moves to the added event, and must be put back at the end of the one with the finish reason.
_MOVED = {
    "vllm": re.compile(rb',"system_fingerprint":"[^"\\]*"'),
    "llamacpp": re.compile(rb',"timings":\{[^{}]*\}'),
}
_RUNNING_TOTALS = frozenset({"vllm", "sglang"})
# In these two, completions always tell their usage, asked or not.
_COMPLETIONS_TELL = frozenset({"llamacpp", "tgi"})


@dataclass(frozen=True, slots=True)
class Asking:
    """What the gateway asks for beyond what the client did. `keep_total`: the client did ask for the total."""

    running: bool
    keep_total: bool


def asking(call: Call, engine: str, replica: Replica) -> Asking | None:
    """Return what to ask on the client's behalf; None where it asked for all there is, or nothing can be had."""
    running = engine in _RUNNING_TOTALS
    if not call.stream or (call.include_usage and (call.continuous_usage or not running)):
        return None
    if engine in _COMPLETIONS_TELL and call.endpoint == "completions":
        return None
    if engine == "vllm" and call.choices > 1 and not call.include_usage and replica.fingerprint is None:
        return None  # the finish reasons of the first choices would wait for the last: see `Unasked`
    return Asking(running=running, keep_total=call.include_usage)


class Unasked:
    """Takes what was asked on the client's behalf out of one stream, event by event.

    An event with a finish reason waits for the next one, which tells what moved; comments in between wait behind it.
    With several choices vLLM's next event is another choice's: then what moved is taken from the replica's last stream,
    as it names only its build. `only_cuts`: of running events nothing but the running total is taken.
    """

    __slots__ = ("_asking", "_behind", "_call", "_engine", "_held", "_moved", "_replica", "_took_out", "only_cuts")

    def __init__(self, asked: Asking, call: Call, engine: str, replica: Replica) -> None:
        self._asking = asked
        self._call = call
        self._engine = engine
        self._replica = replica
        self._moved = None if asked.keep_total else _MOVED.get(engine)
        self._held = self._behind = b""
        self._took_out = False  # whether the last event was
        self.only_cuts = asked.running and engine != "sglang"  # else a null may have to stay

    def event(self, event: bytes) -> bytes:
        """Return what the client gets now, given the next event."""
        if b'"usage"' in event:
            if _NO_CHOICES.search(event) and _TELLS.search(event):
                return self._total(event)
            event = self._without_running(event)
        elif event == b"\n" and self._took_out:  # the rest of its last line end
            return b""
        self._took_out = False
        if self._held and not data_of(event):
            self._behind += event
            return b""
        ready = self._release()
        if self._moved is None or not _FINISHED.search(event) or self._moved.search(event):
            return ready + event
        if self._engine == "vllm" and self._call.choices > 1:
            return ready + _with(event, self._replica.fingerprint or b"")
        self._held = event
        return ready

    def end(self) -> bytes:
        """Return the event that still waits when the stream ends."""
        return self._release()

    def shown(self, fragment: bytes) -> bytes:
        """Return what the client gets of an event that was cut: all before a usage, or before what may become one."""
        usage = fragment.find(_MEMBER)
        if usage >= 0:
            return fragment[:usage]
        begun = next((n for n in range(len(_MEMBER) - 1, 0, -1) if fragment.endswith(_MEMBER[:n])), 0)
        return fragment[: len(fragment) - begun]

    def _total(self, event: bytes) -> bytes:
        moved = self._moved.search(event) if self._moved else None
        ready = self._release(moved[0] if moved else b"")
        self._took_out = not self._asking.keep_total
        return ready if self._took_out else ready + event

    def _release(self, member: bytes = b"") -> bytes:
        """Return what waits; `member` is put back into its event."""
        held, behind = self._held, self._behind
        self._held = self._behind = b""
        return (_with(held, member) if held and member else held) + behind

    def _without_running(self, event: bytes) -> bytes:
        if self._engine == "sglang" and _SGLANG_WITHOUT_NULL not in event:
            return _VALUE.sub(b"null", event, 1)
        if self._asking.running or self._engine == "openai":
            return _RUNNING.sub(b"", event, 1)
        return event


def _with(event: bytes, member: bytes) -> bytes:
    """Return the event with a last member added to its object."""
    end = event.rindex(b"}")
    return event[:end] + member + event[end:]
