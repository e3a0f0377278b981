"""The components that only `POST /v1/chat/completions` has, under their own names."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from gateway.schemas.component import Component, Float, Int32, Int64, List, NonEmpty
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


class Url(Component):
    """Where a picture is: an address, or the picture itself as a data URL."""

    url: str


class ImageUrl(Component):
    """A picture."""

    type: str
    image_url: Url


class Text(Component):
    """A piece of text."""

    type: str
    text: str


class MessageContent_ImageUrl(ImageUrl):  # noqa: N801 the component's own name
    """A content part that is a picture."""

    type: Literal["image_url"]


class MessageContent_Text(Text):  # noqa: N801 the component's own name
    """A content part that is text."""

    type: Literal["text"]


MessageContent: TypeAlias = Annotated[MessageContent_ImageUrl | MessageContent_Text, Field(discriminator="type")]


class Message(Component):
    """A message of text, of tool calls, or both. Any role."""

    role: str
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: List[Any] | None = None


class ImageMessage(Component):
    """A message in parts."""

    role: str
    content: List[MessageContent]


# Left to right: nearly every message is plain text, and trying both kinds costs half as much again.
ChatCompletionMessageType: TypeAlias = Annotated[Message | ImageMessage, Field(union_mode="left_to_right")]


class JsonSchemaResponseFormat(Component):
    """The schema that an answer has to follow."""

    name: str
    description: str | None = None
    schema_: Any = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Component):
    """The form of the answer: text, any JSON object, or JSON of a given schema."""

    type: str
    json_schema: JsonSchemaResponseFormat | None = None


class ChatCompletionRequestBody(Component):
    """A conversation and how to go on from it."""

    model: NonEmpty
    messages: Annotated[List[ChatCompletionMessageType], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    n: Choices | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    logprobs: bool | None = None
    presence_penalty: Penalty | None = None
    response_format: ResponseFormat | None = None
    stop: StopSequence | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: TopLogprobs | None = None
    tool_choice: Any = None
    tools: List[Any] | None = None
    seed: Int64 | None = None
    reasoning_effort: str | None = None


class NestedLogprobToken(Component):
    """A token that was likely at this place."""

    token: str
    logprob: Float
    bytes: List[Int32] | None = None


class LogprobToken(Component):
    """A token of the answer and its rivals."""

    token: str
    logprob: Float
    bytes: List[Int32] | None = None
    top_logprobs: List[NestedLogprobToken] | None = None


class MessageLogprobs(Component):
    """The likelihood of each token of an answer."""

    content: List[LogprobToken]


class ChatCompletionChoice(Component):
    """One answer."""

    index: Int32
    message: Message
    logprobs: MessageLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class Delta(Component):
    """The next piece of a message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class ChatCompletionStreamChoice(Component):
    """The next piece of one answer."""

    index: Int32
    delta: Delta
    logprobs: MessageLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class ChatCompletionResponseBody(Component):
    """The whole answer."""

    id: str
    object: str
    created: Int64
    model: str
    choices: List[ChatCompletionChoice]
    usage: Usage
    prompt_logprobs: str | None = None
    system_fingerprint: str | None = None


class ChatCompletionStreamedResponse(Component):
    """One event of a streamed answer."""

    id: str
    object: str
    created: Int64
    model: str
    choices: List[ChatCompletionStreamChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
