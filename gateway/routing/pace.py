"""How fast a replica generates: the answers that it ended in, how much it has of one that nobody saw out. Pure.

Seconds run from the request to the last byte, so queueing and reading prompts have their part in each token, as they
have in what is estimated.
"""

# What an answer still weighs at the next: the last twenty or so make the pace, each by its length.
_KEPT = 0.95


class Pace:
    """The pace of a replica: unknown, until an answer of it has told its tokens."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def note(self, tokens: int, seconds: float, *, choices: int) -> None:
        """Take in an answer: so many tokens, of so many choices that were generated side by side."""
        self._tokens = _KEPT * self._tokens + tokens / choices
        self._seconds = _KEPT * self._seconds + seconds

    def tokens_in(self, seconds: float, *, choices: int) -> int:
        """Return how many tokens so many choices have after so long; 0 where nobody knows."""
        return int(seconds * choices * self._tokens / self._seconds) if self._seconds > 0 else 0
