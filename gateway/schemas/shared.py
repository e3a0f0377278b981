"""The components that both OpenAPI documents have, alike in both."""

from typing import Annotated, Any, Required, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from gateway.schemas.component import List, NonEmpty, Uint32, component

__all__ = ["ApiError", "ErrorResponse", "StopSequence", "StreamOptions", "Usage"]

# vLLM's bound on stop strings is four, as is OpenAI's; an empty one would stop before the first token.
StopSequence: TypeAlias = NonEmpty | Annotated[List[NonEmpty], Field(max_length=4)]


@component
class StreamOptions(TypedDict, total=False):
    """What a stream carries beside the answer."""

    include_usage: Required[bool]


@component
class Usage(TypedDict, total=False):
    """Tokens of one call as the engine counted them."""

    prompt_tokens: Required[Uint32]
    total_tokens: Required[Uint32]
    completion_tokens: Required[Uint32]
    prompt_tokens_details: Any


@component
class ApiError(TypedDict, total=False):
    """What went wrong, where, and of which kind."""

    code: Required[str]
    message: Required[str]
    param: str | None
    error_type: Required[str]


@component
class ErrorResponse(TypedDict, total=False):
    """The body of every answer that is not a success."""

    error: Required[ApiError]
