"""What an engine did for which request, step by step, in a file that outlives it however it ends.

A line of JSON for each step, written at once: `[microseconds since the epoch, step, number, …]`. The number is the
request's in this process. `began` adds its id, the length of its prompt and its seed; `token` and `ended` nothing. A
request without `ended` was cut: `cut` says when, unless the process was killed.
"""

import json
import os
from pathlib import Path

from gateway.clock import Clock


class Account:
    """Appends to the file at `path`. Raises `OSError` where it cannot be opened."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._clock = clock
        self._requests = 0

    def began(self, request_id: str, *, prompt_tokens: int, seed: int) -> int:
        """Note a request whose prompt is read; return its number."""
        self._requests += 1
        self._note("began", self._requests, request_id, prompt_tokens, seed)
        return self._requests

    def token(self, number: int) -> None:
        """Note that one token was generated. What is sent of it comes later."""
        self._note("token", number)

    def ended(self, number: int) -> None:
        """Note that all was generated."""
        self._note("ended", number)

    def cut(self, number: int) -> None:
        """Note that nobody wants the rest."""
        self._note("cut", number)

    def _note(self, *step: str | int) -> None:
        os.write(self._file, json.dumps((round(self._clock.now() * 1_000_000), *step)).encode() + b"\n")
