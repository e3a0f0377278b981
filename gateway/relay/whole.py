"""An answer that is not streamed: its body in, and what was said: if it is one, and what it used. No I/O."""

from typing import Any

import jiter

from gateway.calls.call import Call
from gateway.calls.usage import BYTES_PER_TOKEN, Usage
from gateway.relay import tally
from gateway.relay.endings import Break
from gateway.relay.outcome import Outcome
from gateway.relay.scanner import broke_off


class Whole:
    """One whole answer. `ended`: the body is complete as HTTP; `broken_by`: why it never will be."""

    __slots__ = ("_answer", "_call", "_tells_first_only", "broken_by", "ended")

    def __init__(self, call: Call, *, engine: str) -> None:
        self.ended = False
        self.broken_by: Break | None = None
        self._call = call
        # Of a whole answer with several choices llama.cpp tells what the first took; of a stream it tells all.
        self._tells_first_only = engine == "llamacpp"
        self._answer: dict[str, Any] | None = None

    def take(self, body: bytes) -> None:
        """Take in the whole body of a success. Where the engine broke off itself, it is none."""
        try:
            answer = jiter.from_json(body)
        except ValueError:
            return
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
            return
        for choice in answer["choices"]:
            if isinstance(choice, dict) and broke_off(choice):
                self.broken_by = "unfinished"
                return
        self._answer = answer

    @property
    def began(self) -> bool:
        """Whether the body is what a completion looks like."""
        return self._answer is not None

    @property
    def fingerprint(self) -> object:
        """How the engine names its build; empty where it does not."""
        return None if self._answer is None else self._answer.get("system_fingerprint") or ""

    def outcome(self, *, client_gone: bool) -> Outcome:
        """Return how the call ended and what it used."""
        if self._answer is None:
            # The prompt may have been read; of what was generated nobody will ever hear, but its replica has a pace.
            unseen = Usage(prompt=self._call.input_tokens, completion=0, source="estimated")
            return (
                Outcome("client_gone", unseen, "client_gone")
                if client_gone
                else Outcome("broken", unseen, "engine_died")
            )
        told = tally.read(self._answer.get("usage"))
        if told is None or (self._tells_first_only and len(self._answer["choices"]) > 1):
            return Outcome("ok", self._estimate(self._answer["choices"], told), "not_reported")
        return Outcome("ok", told, None)

    def _estimate(self, choices: list[Any], told: Usage | None) -> Usage:
        """Count text. Where the tokens of the first choice are known, the others have as many for their text."""
        first, *others = [_text_bytes(choice) for choice in choices] or [0]
        prompt, generated = self._call.input_tokens, -(-(first + sum(others)) // BYTES_PER_TOKEN)
        if told is not None and first:
            generated = told.completion - (-sum(others) * told.completion // first)
        if told is not None and self._call.prompts == 1:
            prompt = told.prompt
        return Usage(prompt=prompt, completion=generated, source="estimated")


def _text_bytes(choice: object) -> int:
    """Length in bytes of what a choice says: its text, or its message's content, reasoning and tool calls."""
    if not isinstance(choice, dict):
        return 0
    message = choice.get("message")
    said = message.items() if isinstance(message, dict) else ()
    parts = [choice.get("text"), *(value for name, value in said if name != "role")]
    return sum(len(part.encode("utf-8", "replace") if isinstance(part, str) else repr(part)) for part in parts if part)
