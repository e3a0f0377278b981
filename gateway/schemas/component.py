"""What every component is made of: strict validation, and the documents' number formats with their ranges.

Components are typed dicts: a body is checked without building a model of every message, which costs half as much again.
Strict: no number from a string, no integer from a boolean or a float. A field that is null is as good as absent, absent
fields stay absent whatever default the documents name, and unknown fields are let through unread.
"""

from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, with_config

# The decorator of every component.
component = with_config(ConfigDict(strict=True, allow_inf_nan=False, hide_input_in_errors=True))

Item = TypeVar("Item")

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1, json_schema_extra={"format": "int64"})]
Uint32 = Annotated[int, Field(ge=0, le=2**32 - 1, json_schema_extra={"format": "uint32"})]
Float = Annotated[float, Field(json_schema_extra={"format": "float"})]
# One bad item is enough: a million errors of a million items would hold up every other call.
List = Annotated[list[Item], Field(fail_fast=True)]
NonEmpty = Annotated[str, Field(min_length=1)]
