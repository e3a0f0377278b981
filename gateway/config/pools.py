"""`pools`: replicas that serve the same model, and how they are treated."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    StrictStr,
    StringConstraints,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.config.discovery import DiscoveryEntry, HostName, can_be_asked_for
from gateway.config.section import Count, Duration, Name, Positive, Section
from gateway.config.timeouts import Timeouts


def _url(text: str) -> str:
    try:
        address = urlsplit(text)
        host = address.hostname if address.port != 0 else None
    except ValueError:  # a port beyond 65535, or half of an IPv6 address
        host = None
    if not host:
        raise ValueError(
            "expected http(s)://host or http(s)://host:port, a port from 1 to 65535, an IPv6 address in brackets"
        )
    can_be_asked_for(host)
    return text


Url = Annotated[StrictStr, StringConstraints(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"), AfterValidator(_url)]
InFlight = Annotated[Positive, Field(le=1_000_000)]
BalanceName = Literal["least_requests", "least_load", "round_robin", "prefix_affinity"]
EngineName = Literal["vllm", "sglang", "tgi", "llamacpp", "openai"]


class ReplicaEntry(Section):
    """One engine server. A bare URL is enough.

    `server_name` is what it is called in TLS and in Host, where its URL has an address.
    """

    url: Url
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    served_name: Name | None = None
    server_name: HostName | None = None
    max_in_flight: InFlight | None = None

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


class LoadEntry(Section):
    """Where an engine tells its own load. Asked for under `balance: least_load`, or where it stands here."""

    path: Annotated[StrictStr, StringConstraints(pattern=r"^/\S*$")] = "/metrics"
    interval: Annotated[Duration, Field(ge=0.05, le=60)] = 1.0


class BreakerEntry(Section):
    """When calls stop going to a replica because those before met faults, and for how long."""

    failures: Annotated[Positive, Field(le=1000)] = 5
    window: Annotated[Duration, Field(gt=0)] = 30.0
    open_for: Annotated[Duration, Field(gt=0)] = 10.0
    panic_at: Annotated[float, Field(gt=0, le=1)] = 1.0


class RetryBudget(Section):
    """How many second tries there are for all calls of a pool: so many of a call, and so many each second."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    per_second: Annotated[float, Field(ge=0, le=10_000)] = 10.0


class QueueEntry(Section):
    """Where calls wait while every replica has as many as it may have: how many, and for how long."""

    max_waiting: Annotated[Count, Field(le=1_000_000)] = 1000
    max_wait: Annotated[Duration, Field(gt=0, le=600)] = 5.0


class PoolEntry(Section):
    """Replicas that serve the same model."""

    engine: EngineName = "vllm"
    discovery: DiscoveryEntry | None = None
    replicas: Annotated[tuple[ReplicaEntry, ...], Field(validate_default=True)] = ()
    api_key: SecretStr | None = None
    balance: BalanceName = "least_requests"
    load: LoadEntry | None = None
    slow_start: Annotated[Duration, Field(ge=0, le=3600)] = 10.0
    max_in_flight: InFlight | None = None
    queue: QueueEntry | None = None
    attempts: Annotated[Positive, Field(le=10)] = 3
    timeouts: Timeouts = Timeouts()
    keep_alive_comments: Annotated[Duration, Field(ge=0.1)] | None = None
    health: Health = Health()
    breaker: BreakerEntry | None = BreakerEntry()
    retry_budget: RetryBudget = RetryBudget()

    @field_validator("replicas")
    @classmethod
    def _some(cls, replicas: tuple[ReplicaEntry, ...], info: ValidationInfo) -> tuple[ReplicaEntry, ...]:
        if not replicas and info.data.get("discovery", ...) is None:
            raise ValueError("expected at least one, or discovery, which finds some")
        return _distinct(replicas)

    @model_validator(mode="after")
    def _load_is_told_and_asked_for(self) -> Self:
        if (self.balance == "least_load" or self.load is not None) and self.engine == "openai":
            where = "balance: least_load" if self.load is None else "load"
            raise ValueError(f"{where}: only for engines that tell their load; engine: openai tells none")
        if self.load is not None and self.balance == "round_robin":
            raise ValueError("load: not with balance: round_robin, which goes by no load")
        return self


def address(url: str) -> str:
    """Return a replica's URL in the one way that all ways of writing it come to: its port told, no slash at the end."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}"


def _distinct(replicas: tuple[ReplicaEntry, ...]) -> tuple[ReplicaEntry, ...]:
    if len({address(replica.url) for replica in replicas}) != len(replicas):
        raise ValueError("the same URL stands here twice")
    return replicas


REPLICAS: TypeAdapter[tuple[ReplicaEntry, ...]] = TypeAdapter(
    Annotated[tuple[ReplicaEntry, ...], AfterValidator(_distinct)]
)
"""A list of replicas by itself, as a file has it that they are found in."""
