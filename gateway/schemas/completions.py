"""The components that only `POST /v1/completions` has, under their own names."""

from typing import Annotated, Required, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from gateway.schemas.component import Float, Int32, Int64, List, NonEmpty, component
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


@component
class CompletionRequestBody(TypedDict, total=False):
    """A prompt, or several, and how to go on from it."""

    model: Required[NonEmpty]
    prompt: Required[PromptValue]
    stream: bool | None
    stream_options: StreamOptions | None
    max_tokens: NotNegative | None
    n: Choices | None
    frequency_penalty: Penalty | None
    logit_bias: LogitBias | None
    logprobs: Logprobs | None
    presence_penalty: Penalty | None
    stop: StopSequence | None
    temperature: Temperature | None
    top_p: TopP | None
    echo: bool | None
    suffix: str | None
    best_of: Choices | None
    seed: Int64 | None


@component
class LogProbs(TypedDict, total=False):
    """The likelihood of each token of a completion."""

    tokens: List[str] | None
    token_logprobs: List[Float] | None
    top_logprobs: List[dict[str, Float]] | None
    text_offset: List[Int32] | None


@component
class CompletionChoice(TypedDict, total=False):
    """One completion of one prompt."""

    text: Required[str]
    index: Required[Int32]
    logprobs: LogProbs | None
    finish_reason: str | None


@component
class CompletionStreamChoice(TypedDict, total=False):
    """The next piece of one completion."""

    index: Required[Int32]
    text: Required[str]
    logprobs: LogProbs | None
    finish_reason: str | None


@component
class CompletionResponseBody(TypedDict, total=False):
    """The whole answer."""

    id: Required[str]
    object: Required[str]
    created: Required[Int64]
    model: Required[str]
    choices: Required[List[CompletionChoice]]
    usage: Required[Usage]
    system_fingerprint: str | None


@component
class CompletionStreamedResponse(TypedDict, total=False):
    """One event of a streamed answer."""

    id: Required[str]
    object: Required[str]
    created: Required[Int64]
    model: Required[str]
    choices: Required[List[CompletionStreamChoice]]
    usage: Usage | None
    system_fingerprint: str | None
