"""`models`: what clients may name, and what they are told of it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.config.section import Count, Name, Positive, Section
from gateway.config.timeouts import TimeoutsOverride


class Pricing(Section):
    """US dollars for a million tokens, shown by GET /v1/models."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]


class ModelEntry(Section):
    """A model that clients may name."""

    pool: Name
    aliases: tuple[Name, ...] = ()
    served_name: Name | None = None
    default_output_tokens: Positive = 1024
    timeouts: TimeoutsOverride = TimeoutsOverride()
    tool_choice: tuple[Literal["auto", "none", "required", "named"], ...] = ("auto", "none")
    content_parts: tuple[Name, ...] = ("text", "image_url")
    media_tokens: dict[Name, Count] = {}
    owned_by: Name = "gateway"
    created: Count = 0
    max_model_len: Positive | None = None
    pricing: Pricing | None = None

    @model_validator(mode="after")
    def _media_are_let_through(self) -> Self:
        for kind in self.media_tokens:
            if kind not in self.content_parts or kind == "text":
                raise ValueError(f"media_tokens: {kind!r} is no kind of content_parts that is not text")
        return self
