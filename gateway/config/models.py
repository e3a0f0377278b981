"""`models`: what clients may name, and what they are told of it."""

from typing import Annotated, Literal

from pydantic import Field

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
    owned_by: Name = "gateway"
    created: Count = 0
    max_model_len: Positive | None = None
    pricing: Pricing | None = None
