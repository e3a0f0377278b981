"""How long an engine may take. A pool has limits for all its models, and a model's entry may change any of them."""

from typing import Annotated

from pydantic import Field

from gateway.config.section import Duration, Section

_Limit = Annotated[Duration, Field(gt=0)]


class TimeoutsOverride(Section):
    """What a model's entry changes of its pool's timeouts; None: nothing."""

    connect: _Limit | None = None
    first_byte: _Limit | None = None
    idle: _Limit | None = None
    answer: _Limit | None = None
    total: _Limit | None = None


class Timeouts(Section):
    """To accept a connection, to a stream's first event, between bytes, to a whole answer, and to the last byte.

    An answer that is not streamed begins when it is finished, so `answer` bounds it and not `first_byte`.
    """

    connect: _Limit = 2.0
    first_byte: _Limit = 120.0
    idle: _Limit = 60.0
    answer: _Limit = 600.0
    total: _Limit | None = None  # a long answer is no fault: only what stands still has died

    def changed(self, override: TimeoutsOverride) -> "Timeouts":
        """Return these timeouts with what `override` names in place of theirs."""
        return self.model_copy(update=override.model_dump(exclude_none=True))
