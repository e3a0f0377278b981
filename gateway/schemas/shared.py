"""The components that both OpenAPI documents have, alike in both."""

from typing import Annotated, Any, TypeAlias

from pydantic import Field

from gateway.schemas.component import Component, List, NonEmpty, Uint32

__all__ = ["ApiError", "ErrorResponse", "StopSequence", "StreamOptions", "Usage"]

# vLLM's bound on stop strings is four, as is OpenAI's; an empty one would stop before the first token.
StopSequence: TypeAlias = NonEmpty | Annotated[List[NonEmpty], Field(max_length=4)]


class StreamOptions(Component):
    """What a stream carries beside the answer."""

    include_usage: bool


class Usage(Component):
    """Tokens of one call as the engine counted them."""

    prompt_tokens: Uint32
    total_tokens: Uint32
    completion_tokens: Uint32
    prompt_tokens_details: Any = None


class ApiError(Component):
    """What went wrong, where, and of which kind."""

    code: str
    message: str
    param: str | None = None
    error_type: str


class ErrorResponse(Component):
    """The body of every answer that is not a success."""

    error: ApiError
