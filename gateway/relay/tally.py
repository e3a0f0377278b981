"""Decoded events of one answer in, its `Usage` out. No bytes, no I/O.

Engines report usage in many ways: once at the end, on every event as a running total, on the last event of each
choice, all zeros first, null. The last word wins where an engine repeats itself, and words are added only where each
speaks of a part of the answer.
"""

from collections.abc import Mapping
from typing import Any

from gateway.calls.usage import Usage

# Past this no engine counts: a larger number is garbage and must not reach the books (they are exact to 2**53).
MAX_TOKENS = 2**32


class Tally:
    """Collects what one answer says of its usage.

    `summed` is for engines that send one total per choice in events without choices (llama.cpp with n > 1): those
    are added. `prompts` is how many prompts the call has: events of one prompt repeat its prompt tokens.
    """

    __slots__ = ("_by_choice", "_choices_per_prompt", "_summed", "_total")

    def __init__(self, *, summed: bool = False, prompts: int = 1, choices: int = 1) -> None:
        self._total: Usage | None = None
        self._by_choice: dict[int, Usage] = {}
        self._summed = summed
        self._choices_per_prompt = max(1, choices // max(1, prompts))

    def note(self, event: Mapping[str, Any]) -> bool:
        """Take in one decoded event, or a whole answer; whether it tells a usage."""
        usage = read(event.get("usage"))
        if usage is None:
            return False
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or "message" in (_dict(choices[0])):
            self._total = _add(self._total, usage) if self._summed and self._total else usage
            return True
        for choice in choices:
            index = _dict(choice).get("index")
            self._by_choice[index if isinstance(index, int) else 0] = usage
        return True

    def usage(self) -> Usage | None:
        """Return the whole answer's usage as far as the engine told it, None if it never did."""
        if self._total is not None or not self._by_choice:
            return self._total
        prompts: dict[int, Usage] = {}
        for index, usage in sorted(self._by_choice.items()):
            prompts.setdefault(index // self._choices_per_prompt, usage)
        parts = self._by_choice.values()
        return Usage(
            prompt=sum(usage.prompt for usage in prompts.values()),
            completion=sum(usage.completion for usage in parts),
            cached=sum(usage.cached for usage in prompts.values()),
            reasoning=sum(usage.reasoning for usage in parts),
        )


def read(usage: object) -> Usage | None:
    """Return an engine's usage object as `Usage`; None where it is null, not an object, or all zeros."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))
    if prompt == 0 and completion == 0:
        return None
    cached = reasoning = 0
    if details := usage.get("prompt_tokens_details"):
        cached = min(_tokens(_dict(details).get("cached_tokens")), prompt)
    if details := usage.get("completion_tokens_details"):
        reasoning = _tokens(_dict(details).get("reasoning_tokens"))
    reasoning = min(reasoning or _tokens(usage.get("reasoning_tokens")), completion)  # SGLang puts it beside the others
    return Usage(prompt, completion, cached, reasoning)


def _add(first: Usage, second: Usage) -> Usage:
    """Add two choices of one prompt: the prompt is theirs in common."""
    return Usage(
        prompt=max(first.prompt, second.prompt),
        completion=first.completion + second.completion,
        cached=max(first.cached, second.cached),
        reasoning=first.reasoning + second.reasoning,
    )


def _tokens(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0  # a bool is an int to isinstance


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
