"""What the engine did, in plain numbers and as the Prometheus text that vLLM serves at /metrics."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Counters:
    """Counts since the start. A token counts as generated when it is produced, whoever still reads it."""

    running: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def request(self, prompt_tokens: int) -> Iterator[None]:
        """Count one request as running, and its prompt as processed."""
        self.running += 1
        self.prompt_tokens += prompt_tokens
        try:
            yield
        finally:
            self.running -= 1

    def generated(self) -> None:
        """Count one token."""
        self.generated_tokens += 1

    def exposition(self, model: str) -> bytes:
        """Return the counts under vLLM's metric names and labels."""
        served = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{served}"'
        running = ("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.")
        waiting = ("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
        prompt = ("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.")
        generated = ("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.")
        success = ("vllm:request_success_total", "counter", "Count of successfully processed requests.")
        reasons = {f'{labels},finished_reason="{reason}"': self.finished[reason] for reason in ("stop", "length")}
        return b"".join(
            (
                _family(*running, rows={labels: self.running}),
                _family(*waiting, rows={labels: 0}),  # it takes all calls at once
                _family(*prompt, rows={labels: self.prompt_tokens}),
                _family(*generated, rows={labels: self.generated_tokens}),
                _family(*success, rows=reasons),
            )
        )


def _family(name: str, kind: str, description: str, *, rows: dict[str, int]) -> bytes:
    samples = "".join(f"{name}{{{labels}}} {float(value)}\n" for labels, value in rows.items())
    return f"# HELP {name} {description}\n# TYPE {name} {kind}\n{samples}".encode()
