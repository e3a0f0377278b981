"""The ranges of request fields, narrower than their formats: what engines and OpenAI agree to accept."""

from typing import Annotated

from pydantic import Field

from gateway.schemas.component import Float, Int32

Temperature = Annotated[Float, Field(ge=0, le=2)]
TopP = Annotated[Float, Field(gt=0, le=1)]
Penalty = Annotated[Float, Field(ge=-2, le=2)]
# OpenAI's bound on n; without one, a single call could reserve every slot of an engine.
Choices = Annotated[Int32, Field(ge=1, le=128)]
Positive = Annotated[Int32, Field(ge=1)]
# Only a call that echoes its prompt may ask for no output: `calls/rules.py`.
NotNegative = Annotated[Int32, Field(ge=0)]
TopLogprobs = Annotated[Int32, Field(ge=0, le=20)]
# vLLM takes -1 for every token of the vocabulary; the upper bound is each engine's own setting.
Logprobs = Annotated[Int32, Field(ge=-1)]
Token = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
LogitBias = Annotated[dict[Token, Annotated[Float, Field(ge=-100, le=100)]], Field(fail_fast=True)]
