"""A streamed answer: engine's bytes in, client's bytes out, and what was said: if it is whole, what it used. No I/O."""

from collections.abc import Mapping
from typing import Any

from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.relay.alike import Alike
from gateway.relay.endings import Break
from gateway.relay.events import Events, is_one_line_of_json
from gateway.relay.outcome import BrokenBy, Ending, Missing, Outcome
from gateway.relay.scanner import Scanner
from gateway.relay.unasked import Unasked

_DONE = b"data: [DONE]"
# How an event ends that lacks nothing but its blank line: with its object, or with `[DONE]`.
_COMPLETE = (b"}", b"]")
_CLOSE = b"}\n\n"


class Stream:
    """One streamed answer. `ended`: the body is complete as HTTP; `broken_by`: why it never will be.

    `at_boundary`: once it is over, whether what the client got of it ends with an event. `unasked` takes out what the
    client did not ask for; None where it gets all.
    """

    __slots__ = (
        "_alike", "_call", "_events", "_false_end", "_given_up", "_scanner", "_told_by_choice", "_unasked",
        "at_boundary", "broken_by", "ended",
    )  # fmt: skip

    def __init__(self, call: Call, *, engine: str, unasked: Unasked | None = None) -> None:
        self.ended = False
        self.broken_by: Break | None = None
        self.at_boundary = True
        self._call = call
        self._events = Events()
        self._scanner = Scanner(
            choices=call.choices,
            prompts=call.prompts,
            summed_usage=engine == "llamacpp",
            done_may_lie=engine == "vllm",  # stopped, it ends so what it had not begun
        )
        self._told_by_choice = engine == "llamacpp" and call.choices > 1
        self._unasked = unasked
        self._alike = Alike() if call.choices == 1 and (unasked is None or unasked.only_cuts) else None
        self._given_up = False
        self._false_end = b""  # `[DONE]` behind an answer that is not whole: a client would take it for one

    def feed(self, data: bytes) -> bytes:
        """Take in the next bytes, and return those that the client gets now."""
        if self._given_up:
            return data
        if self._alike is not None and not self._events.pending and (end := self._alike.end(data)):
            return self._again(data, end)  # what engines send, a read each
        shown = [
            self._line(event) if is_one_line_of_json(event) else self._event(event) for event in self._events.feed(data)
        ]
        if self._unasked is not None:
            data = b"".join(shown)
        if self._false_end:
            data = data.replace(self._false_end, b"")
        if self._events.overflowed:
            data += self._give_up()
        return data

    def end(self) -> bytes:
        """Return what is left for the client. A last event without its blank line counts, one that was cut does not.

        `[DONE]` counts as it stands: the client reads it too, and nothing can be missing before it.
        """
        fragment = bytes(self._events.pending)
        if fragment and (self.ended or fragment.strip() == _DONE):
            self._scanner.event(fragment)
        if self._unasked is None:
            self.at_boundary = self._events.at_boundary
            return b""
        if self.ended and fragment.rstrip().endswith(_COMPLETE):
            tail = self._unasked.event(fragment) + self._unasked.end()
        else:
            tail = self._unasked.end() + self._unasked.shown(fragment)
        shown = Events()
        shown.feed(tail)
        self.at_boundary = shown.at_boundary
        return tail

    @property
    def began(self) -> bool:
        """Whether there is something to relay: an event other than `[DONE]`, an error, or a usage alone."""
        return self._scanner.began

    @property
    def refused(self) -> Mapping[str, Any] | None:
        """The error that the engine sent in place of the first event."""
        return None if self.began else self._scanner.error

    @property
    def between_events(self) -> bool:
        """Whether what the client has ends with an event, and is not all yet: a comment may stand behind it."""
        return not self.whole and (self._unasked is not None or self._events.at_boundary)

    @property
    def whole(self) -> bool:
        """Whether the client needs no further sign: the answer is complete, or the engine said that it is not."""
        scanner = self._scanner
        if scanner.error is not None:
            return True
        return (scanner.done or self.ended) and (scanner.complete or self._events.overflowed)

    @property
    def ended_by(self) -> BrokenBy | None:
        """What ended the answer early; None where it is whole."""
        if self._scanner.error is not None:
            return "engine_error"
        return None if self.whole else self.broken_by or "unfinished"

    @property
    def fingerprint(self) -> object:
        """How the engine names its build, once the answer is complete; empty where it does not name it."""
        return self._scanner.fingerprint if self._scanner.complete else None

    def outcome(self, *, client_gone: bool) -> Outcome:
        """Return how the call ended and what it used."""
        ending: Ending = "ok"
        broken_by = self.ended_by
        if broken_by is not None:
            ending, broken_by = ("client_gone", None) if client_gone else ("broken", broken_by)
        usage, events = self._scanner.usage, self._scanner.content_events
        if usage is not None and not self._tells_less(usage.completion, events):
            return Outcome(ending, usage, None, broken_by)
        # The prompt was read; of what was generated, the events that bear text are the lower bound.
        prompt, cached = (self._call.input_tokens, 0) if usage is None else (usage.prompt, usage.cached)
        estimate = Usage(prompt, completion=events, cached=cached, source="estimated")
        return Outcome(ending, estimate, self._missing(ending, client_gone=client_gone), broken_by)

    def _tells_less(self, completion: int, events: int) -> bool:
        """Whether the engine told of the prompt alone so far, or of some choices of several."""
        return completion < events and (completion == 0 or (self._told_by_choice and not self.whole))

    def _again(self, event: bytes, end: int) -> bytes:
        """Take in an event that differs from those before in its text and its running total only."""
        scanner = self._scanner
        scanner.content_events += 1
        if end == len(event) - len(_CLOSE):
            return event
        scanner.running_total = event
        return event if self._unasked is None else event[:end] + _CLOSE

    def _line(self, event: bytes) -> bytes:
        alike = self._alike
        if alike is not None:
            if end := alike.end(event):
                return self._again(event, end)
            content = self._scanner.content_events
            if self._scanner.line(event):
                if self._scanner.content_events > content:
                    alike.learn(event)
            else:
                alike.forget()
        else:
            self._scanner.line(event)
        return event if self._unasked is None else self._unasked.event(event)

    def _event(self, event: bytes) -> bytes:
        if self._alike is not None:
            self._alike.forget()
        done = self._scanner.done
        self._scanner.event(event)
        if self._scanner.done and not done and not self.whole:
            self._false_end = event
        return event if self._unasked is None else self._unasked.event(event)

    def _missing(self, ending: Ending, *, client_gone: bool) -> Missing:
        if self._events.overflowed:
            return "event_too_large"
        if ending == "ok":
            return "not_reported"
        return "client_gone" if client_gone else "engine_died"

    def _give_up(self) -> bytes:
        """Relay an event that is too large to be understood as it comes, and all that follows."""
        held = b"" if self._unasked is None else self._unasked.end() + self._events.pending
        self._unasked, self._given_up = None, True
        self._events.pending.clear()
        return held
