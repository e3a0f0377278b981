"""What one answer said, streamed or whole: if it is complete, what it used, what the client gets of it. No I/O."""

from dataclasses import dataclass
from typing import Any, Literal

import jiter

from gateway.calls.call import Call
from gateway.calls.usage import BYTES_PER_TOKEN, Usage
from gateway.relay import tally
from gateway.relay.endings import Break
from gateway.relay.events import Events, is_one_line_of_json
from gateway.relay.scanner import Scanner
from gateway.relay.unasked import Unasked

_DONE = b"data: [DONE]"

Missing = Literal["not_reported", "engine_died", "client_gone", "event_too_large"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call that reached an engine ended. `usage_missing` says why usage is estimated, None where it is not."""

    ending: Literal["ok", "broken", "client_gone"]
    usage: Usage
    usage_missing: Missing | None


class Reading:
    """One answer. `ended`: the body is complete as HTTP; `broken_by`: why it never will be.

    `at_boundary`: once a stream is over, whether what the client got of it ends with an event. `unasked` takes out of a
    stream what the client did not ask for; None where it gets all.
    """

    __slots__ = (
        "_answer",
        "_events",
        "_scanner",
        "_tells_first_only",
        "_unasked",
        "at_boundary",
        "broken_by",
        "call",
        "ended",
    )

    def __init__(self, call: Call, *, engine: str, unasked: Unasked | None = None) -> None:
        self.ended = False
        self.broken_by: Break | None = None
        self.at_boundary = True
        self.call = call
        self._events = Events()
        self._scanner = Scanner(choices=call.choices, prompts=call.prompts, summed_usage=engine == "llamacpp")
        self._unasked = unasked
        # Of a whole answer with several choices llama.cpp tells what the first took; of a stream it tells all.
        self._tells_first_only = engine == "llamacpp" and call.choices > 1
        self._answer: dict[str, Any] | None = None

    def feed(self, data: bytes) -> bytes:
        """Take in the next bytes of a stream, and return those that the client gets now."""
        if is_one_line_of_json(data) and not self._events.pending:  # what engines send, a read each
            running = self._scanner.line(data)
            if self._unasked is None:
                return data
            return self._unasked.running(data) if running else self._unasked.event(data)
        events = self._events.feed(data)
        for event in events:
            self._scanner.event(event)
        if self._unasked is not None:
            data = b"".join([self._unasked.event(event) for event in events])
        if self._events.overflowed:
            data += self._give_up()
        return data

    def end(self) -> bytes:
        """Return what is left for the client. A last event without its blank line counts, one that was cut does not.

        `[DONE]` counts as it stands: the client reads it too, and nothing can be missing before it.
        """
        fragment = self._events.pending
        if fragment and (self.ended or fragment.strip() == _DONE):
            self._scanner.event(fragment)
        if self._unasked is None:
            self.at_boundary = self._events.at_boundary
            return b""
        shown = self._unasked.shown(fragment)
        self.at_boundary = not shown.strip(b"\r\n")
        return self._unasked.end() + shown

    def take_whole(self, body: bytes) -> None:
        """Take in the whole body of an answer that is not streamed."""
        try:
            answer = jiter.from_json(body)
        except ValueError:
            return
        if isinstance(answer, dict) and isinstance(answer.get("choices"), list):
            self._answer = answer

    @property
    def is_answer(self) -> bool:
        """Whether the whole body is what a completion looks like."""
        return self._answer is not None

    @property
    def began(self) -> bool:
        """Whether there is something to relay: an event other than `[DONE]`, or a whole answer."""
        return self._answer is not None or self._scanner.events > self._scanner.done

    @property
    def whole(self) -> bool:
        """Whether the client needs no further sign: the answer is complete, or the engine said that it is not."""
        scanner = self._scanner
        if self._answer is not None or scanner.error is not None or scanner.done:
            return True
        return self.ended and (scanner.complete or self._events.overflowed)

    def outcome(self, *, client_gone: bool) -> Outcome:
        """Return how the call ended and what it used."""
        ending: Literal["ok", "broken", "client_gone"] = "ok"
        if not self.whole or self._scanner.error is not None:
            ending = "client_gone" if client_gone else "broken"
        usage = self._reported()
        if usage is not None:
            return Outcome(ending, usage, None)
        missing: Missing = "not_reported"
        if self._events.overflowed:
            missing = "event_too_large"
        elif ending != "ok":
            missing = "client_gone" if client_gone else "engine_died"
        return Outcome(ending, self._estimate(), missing)

    def _give_up(self) -> bytes:
        """Relay an event that is too large to be understood as it comes, and all that follows."""
        held = b"" if self._unasked is None else self._unasked.end() + self._events.pending
        self._unasked, self._events.pending = None, b""
        return held

    def _reported(self) -> Usage | None:
        if self._answer is None:
            return self._scanner.usage
        return None if self._tells_first_only else tally.read(self._answer.get("usage"))

    def _estimate(self) -> Usage:
        """The prompt was read; of what was generated, count the events, or the text of a whole answer.

        Where the tokens of the first choice are known, the others have as many for their text.
        """
        prompt, generated = self.call.input_tokens, self._scanner.content_events
        if self._answer is not None:
            first, *others = [_text_bytes(choice) for choice in self._answer["choices"]] or [0]
            told = tally.read(self._answer.get("usage"))
            generated = -(-(first + sum(others)) // BYTES_PER_TOKEN)
            if told is not None and first:
                generated = told.completion - (-sum(others) * told.completion // first)
            if told is not None and self.call.prompts == 1:
                prompt = told.prompt
        return Usage(prompt=prompt, completion=generated, source="estimated")


def _text_bytes(choice: object) -> int:
    """Length in bytes of what a choice says: its text, or its message's content, reasoning and tool calls."""
    if not isinstance(choice, dict):
        return 0
    message = choice.get("message")
    parts = [choice.get("text"), *(message.values() if isinstance(message, dict) else ())]
    return sum(len(part.encode("utf-8", "replace") if isinstance(part, str) else repr(part)) for part in parts if part)
