"""One validated inference request."""

from typing import Literal, NamedTuple

from gateway.calls.prefix import Prefixes

Endpoint = Literal["chat", "completions"]

PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


ToolChoice = Literal["auto", "none", "required", "named"]


class ContentPart(NamedTuple):
    """A content part of a message: its `type` and where it stands (`messages[0].content[1]`)."""

    type: str
    path: str


class Call(NamedTuple):
    """What the later stages need to know of a valid body. Only `parse` makes one.

    A named tuple: a frozen dataclass sets each field by a call of its own, and takes twice as long to make.

    `model` is as the client wrote it. `input_tokens` is an estimate, but of token ids; `text_bytes` is what it was made
    of, 0 where an engine's own count would teach nothing: ids, or parts that are not text. `output_tokens` is the
    largest output that the client declared for one choice, None when it declared none. `generations` is how many
    outputs the engine may generate: `prompts` times the larger of n and best_of; `choices` how many the answer carries:
    `prompts` times n.
    `prefixes` say how the prompt begins; there are none where nobody asked.
    `tool_choice` and `content_parts` (one per distinct type) are what `check_features` holds against the model.
    """

    endpoint: Endpoint
    model: str
    body: bytes
    stream: bool
    include_usage: bool
    continuous_usage: bool
    input_tokens: int
    output_tokens: int | None
    choices: int = 1
    generations: int = 1
    prompts: int = 1
    text_bytes: int = 0
    prefixes: Prefixes = ()
    tool_choice: ToolChoice | None = None
    content_parts: tuple[ContentPart, ...] = ()
