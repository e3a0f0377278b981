"""`models`: what clients may name, where it is served, and what they are told of it."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.section import Count, Name, Positive, Section
from gateway.config.timeouts import TimeoutsOverride


class Pricing(Section):
    """US dollars for a million tokens, shown by GET /v1/models."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]


def _weighted(value: object) -> object:
    """Return pools with weights; the name of one alone has all calls."""
    if isinstance(value, str):
        return {value: 1.0}
    if not isinstance(value, dict):
        raise ValueError("expected the name of a pool, or names of pools with weights")  # noqa: TRY004 for pydantic
    return value


Weights = Annotated[dict[Name, Annotated[float, Field(strict=True, ge=0, le=1000)]], BeforeValidator(_weighted)]


class ModelEntry(Section):
    """A model that clients may name. `pool` has every pool that serves it, with the weight of its share of calls."""

    pool: Weights
    fallbacks: tuple[Name, ...] = ()
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
    def _some_pool_has_calls(self) -> Self:
        if not any(self.pool.values()):
            raise ValueError("pool: no pool has a weight above 0")
        return self

    @model_validator(mode="after")
    def _media_are_let_through(self) -> Self:
        for kind in self.media_tokens:
            if kind not in self.content_parts or kind == "text":
                raise ValueError(f"media_tokens: {kind!r} is no kind of content_parts that is not text")
        return self
