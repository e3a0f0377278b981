"""A job in, tokens out: text without a model, the same for the same job, one token of every running choice a step.

Sans I/O: whoever calls `step` decides the pace.
"""

import zlib
from collections.abc import Iterator

from gateway.engine import tokenizer
from gateway.engine.job import Job, Prompt


class Choice:
    """One output under generation; `finish_reason` is None until its last token is out."""

    __slots__ = (
        "_echo",
        "_job",
        "_limit",
        "_state",
        "finish_reason",
        "generated",
        "index",
        "prompt_tokens",
        "stop_reason",
    )

    def __init__(self, index: int, prompt: Prompt, *, job: Job) -> None:
        self.index = index
        self.prompt_tokens = prompt.tokens
        self.generated = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self._job = job
        self._limit = prompt.limit
        self._echo = prompt.text if job.echo else ""
        self._state = zlib.crc32(f"{job.seed}:{index}".encode(), zlib.crc32(prompt.text.encode(errors="replace")))

    def next_text(self) -> str:
        """Generate one token; return its text, cut where a stop string begins in it, the echo before the first."""
        self._state = (self._state * 1664525 + 1013904223) & 0xFFFFFFFF
        text = tokenizer.decode([self._state >> 16])
        self.generated += 1
        if self.generated == self._limit:
            self.finish_reason = self._job.limit_reason
        for stop in self._job.stop:
            if stop in text:
                text, self.finish_reason, self.stop_reason = text.partition(stop)[0], "stop", stop
        return self._echo + text if self.generated == 1 else text


class Generation:
    """All choices of one job, numbered as vLLM does: prompt by prompt, `n` for each."""

    __slots__ = ("_running", "choices", "prompt_tokens")

    def __init__(self, job: Job) -> None:
        prompts = [prompt for prompt in job.prompts for _ in range(job.n)]
        self.choices = [Choice(index, prompt, job=job) for index, prompt in enumerate(prompts)]
        self.prompt_tokens = sum(prompt.tokens for prompt in job.prompts)
        self._running = self.choices

    @property
    def running(self) -> bool:
        """Whether any choice has tokens left."""
        return bool(self._running)

    @property
    def generated(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(choice.generated for choice in self.choices)

    def step(self) -> Iterator[tuple[Choice, str]]:
        """Generate the next token of every running choice, each when it is asked for."""
        for choice in self._running:
            yield choice, choice.next_text()
        self._running = [choice for choice in self._running if choice.finish_reason is None]
