"""The components that only `POST /v1/completions` has, under their own names."""

from typing import Annotated, TypeAlias

from pydantic import Field

from gateway.schemas.component import Component, Float, Int32, Int64, List, NonEmpty
from gateway.schemas.ranges import Choices, LogitBias, Logprobs, NotNegative, Penalty, Temperature, TopP
from gateway.schemas.shared import StopSequence, StreamOptions, Usage

__all__ = [
    "CompletionChoice",
    "CompletionRequestBody",
    "CompletionResponseBody",
    "CompletionStreamChoice",
    "CompletionStreamedResponse",
    "LogProbs",
    "PromptValue",
]

# vLLM's bound on the prompts of one call.
MAX_PROMPTS = 1024

TokenIds = Annotated[List[Annotated[Int32, Field(ge=0)]], Field(min_length=1)]
PromptValue: TypeAlias = Annotated[
    NonEmpty
    | Annotated[List[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | TokenIds
    | Annotated[List[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)],
    Field(union_mode="left_to_right"),
]


class CompletionRequestBody(Component):
    """A prompt, or several, and how to go on from it."""

    model: NonEmpty
    prompt: PromptValue
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: NotNegative | None = None
    n: Choices | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    logprobs: Logprobs | None = None
    presence_penalty: Penalty | None = None
    stop: StopSequence | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Choices | None = None
    seed: Int64 | None = None


class LogProbs(Component):
    """The likelihood of each token of a completion."""

    tokens: List[str] | None = None
    token_logprobs: List[Float] | None = None
    top_logprobs: List[dict[str, Float]] | None = None
    text_offset: List[Int32] | None = None


class CompletionChoice(Component):
    """One completion of one prompt."""

    text: str
    index: Int32
    logprobs: LogProbs | None = None
    finish_reason: str | None = None


class CompletionStreamChoice(Component):
    """The next piece of one completion."""

    index: Int32
    text: str
    logprobs: LogProbs | None = None
    finish_reason: str | None = None


class CompletionResponseBody(Component):
    """The whole answer."""

    id: str
    object: str
    created: Int64
    model: str
    choices: List[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None


class CompletionStreamedResponse(Component):
    """One event of a streamed answer."""

    id: str
    object: str
    created: Int64
    model: str
    choices: List[CompletionStreamChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
