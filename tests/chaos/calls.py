"""What is sent: calls of every kind, drawn from a seed. Each has a number, which is its body's `seed` too."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

from gateway import config
from gateway.calls.call import PATHS, Call, Endpoint
from gateway.calls.estimate import FEWEST_BYTES, MOST_BYTES
from gateway.calls.parse import parse
from gateway.engine.generation import Generation
from gateway.engine.job import parse as job_of
from gateway.engine.server import MAX_MODEL_LEN
from tests.chaos.plans import KEYS, MODELS, TENANTS, UNLEARNED

# As many calls of ten as are of a tenant: most are not refused.
_WEIGHTS = (6, 2, 2)
_MOST_TOKENS = 60
_WORDS = ("rain", "over", "the harbour", "and", "a ferry", "that", "comes in", "late", "with its lights", "on")

# What is wrong with a call. `engine`: only the engine finds it. `token`: nobody knows its bearer.
Wrong = Literal["json", "field", "model", "token", "engine"]
_WRONG: tuple[Wrong, ...] = ("json", "field", "model", "token", "engine")


@dataclass(frozen=True)
class Planned:
    """One call: `leaves_s` is when its client hangs up, `deadline_ms` how long it tells the gateway that it waits."""

    number: int
    tenant: str
    key: str
    model: str
    endpoint: Endpoint
    body: bytes
    stream: bool
    wrong: Wrong | None
    leaves_s: float | None
    deadline_ms: int | None

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    @property
    def reserves(self) -> bool:
        """Whether the gateway finds nothing wrong with it."""
        return self.wrong in {None, "engine"}

    @property
    def hurried(self) -> bool:
        """Whether it may be broken off before its engine is done, by its client or for it."""
        return self.leaves_s is not None or self.deadline_ms is not None

    @cached_property
    def parsed(self) -> Call:
        """What the gateway makes of it, for what it reserves and estimates."""
        return parse(self.endpoint, self.body, requests=config.Requests())

    @property
    def output(self) -> int:
        """How many tokens its engine may generate at most."""
        call = self.parsed
        assert call.output_tokens is not None, "every call declares its maximum"
        return call.output_tokens * call.generations

    @property
    def inputs(self) -> tuple[int, int]:
        """What the gateway may take its prompt for, at least and at most: of texts it learns how long they are."""
        call = self.parsed
        if not call.text_bytes:
            return call.input_tokens, call.input_tokens
        return int(call.text_bytes / MOST_BYTES) or 1, int(call.text_bytes / FEWEST_BYTES)

    @property
    def reserved(self) -> tuple[int, int]:
        """How many tokens it reserves, at least and at most."""
        least, most = self.inputs
        return least + self.output, most + self.output

    @cached_property
    def texts(self) -> list[str]:
        """What the engine says, choice by choice: it depends on nothing but the body."""
        job = job_of(self.body, endpoint=self.endpoint, model=self.model, max_model_len=MAX_MODEL_LEN)
        generation = Generation(job)
        said = [""] * len(generation.choices)
        while generation.running:
            for choice, text in generation.step():
                said[choice.index] += text
        return said


def planned(seed: int) -> Iterator[Planned]:
    """Yield calls without end."""
    chance = Random(f"{seed}:calls")
    number = 0
    while True:
        number += 1
        yield _one(number, chance)


def _one(number: int, chance: Random) -> Planned:
    tenant = chance.choices(TENANTS, _WEIGHTS)[0]
    model = chance.choice(list(MODELS))
    endpoint: Endpoint = chance.choice(("chat", "completions"))
    stream = chance.random() < 0.65
    wrong = chance.choice(_WRONG) if chance.random() < 0.08 else None
    fields = _fields(number, endpoint, model, stream=stream, chance=chance)
    return Planned(
        number=number,
        tenant=tenant,
        key=f"key-{chance.randrange(KEYS)}",
        model=model,
        endpoint=endpoint,
        body=_body(fields, wrong),
        stream=stream,
        wrong=wrong,
        leaves_s=chance.uniform(0, 0.5) if chance.random() < 0.15 else None,
        deadline_ms=chance.randint(1, 300) if chance.random() < 0.04 else None,
    )


def _fields(number: int, endpoint: Endpoint, model: str, *, stream: bool, chance: Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": model, "seed": number, "max_tokens": chance.randint(1, _MOST_TOKENS)}
    fields |= _prompt(endpoint, learned=model != UNLEARNED, chance=chance)
    if chance.random() < 0.1:
        fields["n"] = chance.randint(2, 3)
    if stream:
        fields["stream"] = True
        options = chance.choice((None, None, {"include_usage": True}))
        if options is not None:
            fields["stream_options"] = options
    return fields


def _prompt(endpoint: Endpoint, *, learned: bool, chance: Random) -> dict[str, Any]:
    """Return the fields of a prompt; not `learned`: of one that teaches the gateway nothing."""
    text = " ".join(chance.choices(_WORDS, k=chance.randint(1, 120)))
    several = chance.random() < 0.1
    if endpoint == "completions":
        one: str | list[int] = text if learned else [ord(letter) for letter in text]
        return {"prompt": [one, one] if several else one}
    content: Any = text
    if not learned:
        content = [
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        ]
    return {"messages": [{"role": "user", "content": content}] * (2 if several else 1)}


def _body(fields: dict[str, Any], wrong: Wrong | None) -> bytes:
    match wrong:
        case "json":
            return json.dumps(fields).encode()[:-1]
        case "field":
            return json.dumps(fields | {"temperature": "warm"}).encode()
        case "model":
            return json.dumps(fields | {"model": "chaos/none"}).encode()
        case "engine":
            return json.dumps(fields | {"max_tokens": MAX_MODEL_LEN + 1}).encode()
        case _:
            return json.dumps(fields).encode()
