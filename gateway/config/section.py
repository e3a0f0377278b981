"""What every section of config.yaml is made of: its base, and the kinds of values that many sections have.

Durations are seconds and sizes are bytes once loaded. A key that a section does not know is an error.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, StringConstraints

from gateway.config import units

Duration = Annotated[float, BeforeValidator(units.seconds)]
Size = Annotated[int, BeforeValidator(units.size)]
Count = Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=0, le=2**53)]
Positive = Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=1, le=2**53)]
Name = Annotated[StrictStr, StringConstraints(min_length=1, max_length=200)]


class Section(BaseModel):
    """A part of config.yaml: frozen, and closed to unknown keys; its errors never show a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
