"""The components that only `POST /v1/chat/completions` has, under their own names."""

from typing import Annotated, Any, Literal, Required, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from gateway.schemas.component import Float, Int32, Int64, List, NonEmpty, component
from gateway.schemas.ranges import Choices, LogitBias, Penalty, Positive, Temperature, TopLogprobs, TopP
from gateway.schemas.shared import StopSequence, StreamOptions, Usage

__all__ = [
    "ChatCompletionChoice",
    "ChatCompletionMessageType",
    "ChatCompletionRequestBody",
    "ChatCompletionResponseBody",
    "ChatCompletionStreamChoice",
    "ChatCompletionStreamedResponse",
    "Delta",
    "ImageMessage",
    "ImageUrl",
    "JsonSchemaResponseFormat",
    "LogprobToken",
    "Message",
    "MessageContent",
    "MessageContent_ImageUrl",
    "MessageContent_Text",
    "MessageLogprobs",
    "NestedLogprobToken",
    "ResponseFormat",
    "Text",
    "Url",
]


@component
class Url(TypedDict, total=False):
    """Where a picture is: an address, or the picture itself as a data URL."""

    url: Required[str]


@component
class ImageUrl(TypedDict, total=False):
    """A picture."""

    type: Required[str]
    image_url: Required[Url]


@component
class Text(TypedDict, total=False):
    """A piece of text."""

    type: Required[str]
    text: Required[str]


@component
class MessageContent_ImageUrl(TypedDict, total=False):  # noqa: N801 the component's own name
    """A content part that is a picture."""

    type: Required[Literal["image_url"]]
    image_url: Required[Url]


@component
class MessageContent_Text(TypedDict, total=False):  # noqa: N801 the component's own name
    """A content part that is text."""

    type: Required[Literal["text"]]
    text: Required[str]


MessageContent: TypeAlias = Annotated[MessageContent_ImageUrl | MessageContent_Text, Field(discriminator="type")]


@component
class Message(TypedDict, total=False):
    """A message of text, of tool calls, or both. Any role."""

    role: Required[str]
    content: str | None
    reasoning_content: str | None
    tool_calls: List[Any] | None


@component
class ImageMessage(TypedDict, total=False):
    """A message in parts."""

    role: Required[str]
    content: Required[List[MessageContent]]


# Left to right: nearly every message is plain text, and trying both kinds costs half as much again.
ChatCompletionMessageType: TypeAlias = Annotated[Message | ImageMessage, Field(union_mode="left_to_right")]


@component
class JsonSchemaResponseFormat(TypedDict, total=False):
    """The schema that an answer has to follow."""

    name: Required[str]
    description: str | None
    schema: Any
    strict: bool | None


@component
class ResponseFormat(TypedDict, total=False):
    """The form of the answer: text, any JSON object, or JSON of a given schema."""

    type: Required[str]
    json_schema: JsonSchemaResponseFormat | None


@component
class ChatCompletionRequestBody(TypedDict, total=False):
    """A conversation and how to go on from it."""

    model: Required[NonEmpty]
    messages: Required[Annotated[List[ChatCompletionMessageType], Field(min_length=1)]]
    stream: bool | None
    stream_options: StreamOptions | None
    max_completion_tokens: Positive | None
    max_tokens: Positive | None
    n: Choices | None
    frequency_penalty: Penalty | None
    logit_bias: LogitBias | None
    logprobs: bool | None
    presence_penalty: Penalty | None
    response_format: ResponseFormat | None
    stop: StopSequence | None
    temperature: Temperature | None
    top_p: TopP | None
    top_logprobs: TopLogprobs | None
    tool_choice: Any
    tools: List[Any] | None
    seed: Int64 | None
    reasoning_effort: str | None


@component
class NestedLogprobToken(TypedDict, total=False):
    """A token that was likely at this place."""

    token: Required[str]
    logprob: Required[Float]
    bytes: List[Int32] | None


@component
class LogprobToken(TypedDict, total=False):
    """A token of the answer and its rivals."""

    token: Required[str]
    logprob: Required[Float]
    bytes: List[Int32] | None
    top_logprobs: List[NestedLogprobToken] | None


@component
class MessageLogprobs(TypedDict, total=False):
    """The likelihood of each token of an answer."""

    content: Required[List[LogprobToken]]


@component
class ChatCompletionChoice(TypedDict, total=False):
    """One answer."""

    index: Required[Int32]
    message: Required[Message]
    logprobs: MessageLogprobs | None
    finish_reason: str | None
    stop_reason: Any


@component
class Delta(TypedDict, total=False):
    """The next piece of a message."""

    role: str | None
    content: str | None
    reasoning_content: str | None
    tool_calls: Any


@component
class ChatCompletionStreamChoice(TypedDict, total=False):
    """The next piece of one answer."""

    index: Required[Int32]
    delta: Required[Delta]
    logprobs: MessageLogprobs | None
    finish_reason: str | None
    stop_reason: Any


@component
class ChatCompletionResponseBody(TypedDict, total=False):
    """The whole answer."""

    id: Required[str]
    object: Required[str]
    created: Required[Int64]
    model: Required[str]
    choices: Required[List[ChatCompletionChoice]]
    usage: Required[Usage]
    prompt_logprobs: str | None
    system_fingerprint: str | None


@component
class ChatCompletionStreamedResponse(TypedDict, total=False):
    """One event of a streamed answer."""

    id: Required[str]
    object: Required[str]
    created: Required[Int64]
    model: Required[str]
    choices: Required[List[ChatCompletionStreamChoice]]
    usage: Usage | None
    system_fingerprint: str | None
