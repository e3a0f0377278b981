"""`pools`: replicas that serve the same model, and how they are treated."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, StrictStr, StringConstraints, field_validator, model_validator

from gateway.config.section import Duration, Name, Positive, Section
from gateway.config.timeouts import Timeouts

Url = Annotated[StrictStr, StringConstraints(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]
BalanceName = Literal["least_requests", "round_robin", "prefix_affinity"]


class ReplicaEntry(Section):
    """One engine server. A bare URL is enough."""

    url: Url
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    served_name: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class Health(Section):
    """Active probing of every replica."""

    path: Annotated[StrictStr, StringConstraints(pattern=r"^/\S*$")] = "/health"
    interval: Annotated[Duration, Field(ge=0.05)] = 5.0
    unhealthy_after: Positive = 3
    healthy_after: Positive = 1


class BreakerEntry(Section):
    """When calls stop going to a replica because those before met faults, and for how long."""

    failures: Annotated[Positive, Field(le=1000)] = 5
    window: Annotated[Duration, Field(gt=0)] = 30.0
    open_for: Annotated[Duration, Field(gt=0)] = 10.0


class RetryBudget(Section):
    """How many second tries there are for all calls of a pool: so many of a call, and so many each second."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    per_second: Annotated[float, Field(ge=0, le=10_000)] = 10.0


class PoolEntry(Section):
    """Replicas that serve the same model."""

    engine: Literal["vllm", "sglang", "tgi", "llamacpp", "openai"] = "vllm"
    replicas: Annotated[tuple[ReplicaEntry, ...], Field(min_length=1)]
    api_key: SecretStr | None = None
    balance: BalanceName = "least_requests"
    attempts: Annotated[Positive, Field(le=10)] = 3
    timeouts: Timeouts = Timeouts()
    keep_alive_comments: Annotated[Duration, Field(ge=0.1)] | None = None
    health: Health = Health()
    breaker: BreakerEntry | None = BreakerEntry()
    retry_budget: RetryBudget = RetryBudget()

    @field_validator("replicas")
    @classmethod
    def _distinct(cls, replicas: tuple[ReplicaEntry, ...]) -> tuple[ReplicaEntry, ...]:
        if len({replica.url for replica in replicas}) != len(replicas):
            raise ValueError("the same URL stands here twice")
        return replicas
