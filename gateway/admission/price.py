"""What a call's tokens count under a rule with `weights`: integers in and out, exact, rounded once for each call."""

from typing import NamedTuple

# Prices are in thousandths of a unit: weights have at most three decimals.
UNIT = 1000


class Price(NamedTuple):
    """What a token of each kind counts, in thousandths.

    `prompt` is for tokens that were not cached, `completion` for those that are no reasoning.
    """

    prompt: int
    completion: int
    cached: int
    reasoning: int

    def units(self, prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> int:
        """Return what a call counts, rounded up. `cached` are part of `prompt`, `reasoning` part of `completion`."""
        inputs = (prompt - cached) * self.prompt + cached * self.cached
        outputs = (completion - reasoning) * self.completion + reasoning * self.reasoning
        return -(-(inputs + outputs) // UNIT)

    @property
    def dearest(self) -> "Price":
        """The price where every token turns out to be of its dearer kind: no call of that size counts more."""
        prompt, completion = max(self.prompt, self.cached), max(self.completion, self.reasoning)
        return Price(prompt, completion, prompt, completion)
