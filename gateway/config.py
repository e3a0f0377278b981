"""config.yaml as frozen models: every key, its default and its limits.

Durations are seconds and sizes are bytes once loaded. Reading the file is `gateway/configfile.py`.
"""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import jmespath
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from gateway import units

Duration = Annotated[float, BeforeValidator(units.seconds)]
Size = Annotated[int, BeforeValidator(units.size)]
Count = Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=0, le=2**53)]
Positive = Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=1, le=2**53)]
Name = Annotated[StrictStr, StringConstraints(min_length=1, max_length=200)]
Url = Annotated[StrictStr, StringConstraints(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Listen(_Section):
    """An address to listen on, written `host:port`, `[ipv6]:port` or `:port` (everywhere); port 0 takes a free one."""

    host: str
    port: int

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        host, colon, port = value.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 the largest TCP port
            raise ValueError(f"expected host:port such as 0.0.0.0:8080, got {value!r}")
        return {"host": host.strip("[]") or "0.0.0.0", "port": int(port)}  # noqa: S104 what ":8080" asks for


def _listen(text: str) -> Listen:
    return Listen.model_validate(text)


class Server(_Section):
    """The tenant listener."""

    listen: Listen = _listen("0.0.0.0:8080")
    workers: Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=1, le=1)] = 1
    max_body: Size = 20 * 2**20
    drain_timeout: Duration = 30.0


class Admin(_Section):
    """The operator listener: loopback unless told otherwise."""

    listen: Listen = _listen("127.0.0.1:9090")


class Claims(_Section):
    """Where a token says who its bearer is: JMESPath over the verified claims."""

    key: Name = "sub"
    tenant: Name = "org_id || sub"
    plan: Name = "plan"
    models: Name = "models"

    @field_validator("*")
    @classmethod
    def _compiles(cls, expression: str) -> str:
        try:
            # Compiling alone does not tell of functions that do not exist; searching fails for want of claims, too.
            jmespath.compile(expression).search({})
        except (jmespath.exceptions.ParseError, jmespath.exceptions.UnknownFunctionError) as error:
            raise ValueError(f"not a JMESPath expression: {str(error).splitlines()[0]}") from error
        except (ValueError, TypeError, ArithmeticError):
            pass
        return expression


# Asymmetric only: who could verify with a shared secret could sign with it.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"]


class Issuer(_Section):
    """Whose tokens are accepted, and with which keys they are verified."""

    issuer: Name
    jwks: Name | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "ES512")
    audience: Name | tuple[Name, ...] | None = None
    leeway: Annotated[Duration, Field(le=300)] = 5.0
    refresh: Annotated[Duration, Field(ge=1)] = 300.0
    cooldown: Annotated[Duration, Field(ge=0.1)] = 10.0
    require: dict[str, str | int | bool] = {}
    claims: Claims = Claims()

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.jwks is None and urlsplit(self.issuer).scheme not in {"http", "https"}:
            raise ValueError("jwks: needed, because keys can be discovered only from an issuer that is an http(s) URL")
        return self


# Who signs with the development key.
DEVELOPMENT_ISSUER = "gateway-development"


class Auth(_Section):
    """Who may call."""

    issuers: tuple[Issuer, ...] = ()
    development_key: Name | None = None

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not self.issuers and self.development_key is None:
            raise ValueError("needs at least one entry in issuers, or a development_key; nobody could call")
        names = [issuer.issuer for issuer in self.issuers]
        if len(set(names)) != len(names):
            raise ValueError("issuers: the same issuer stands here twice")
        if DEVELOPMENT_ISSUER in names:
            raise ValueError(f"issuers: {DEVELOPMENT_ISSUER!r} is the name of development_key's own issuer")
        return self


Per = Literal["key", "tenant", "model", "pool"]
MIN_WINDOW_S = 0.1
MAX_WINDOW_S = 366 * 86400.0


def _window(value: object) -> object:
    return value if value in {"day", "month"} else units.seconds(value)


class Rule(_Section):
    """One limit: for each combination of `per`, at most so much of exactly one measure in a window."""

    name: Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    per: tuple[Per, ...] = ()
    requests: Count | None = None
    tokens: Count | None = None
    concurrent: Count | None = None
    window: Annotated[float | Literal["day", "month"] | None, BeforeValidator(_window)] = None
    count: Literal["total", "input", "output"] = "total"
    shadow: StrictBool = False
    models: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        measures = [m for m in ("requests", "tokens", "concurrent") if getattr(self, m) is not None]
        if len(measures) != 1:
            raise ValueError(
                f"expected exactly one of requests, tokens, concurrent; got {', '.join(measures) or 'none'}"
            )
        if (self.window is None) != (self.concurrent is not None):
            raise ValueError("window: needed with requests and tokens, and only there")
        if isinstance(self.window, float) and not MIN_WINDOW_S <= self.window <= MAX_WINDOW_S:
            raise ValueError("window: expected between 100ms and 366d")
        if self.count != "total" and self.tokens is None:
            raise ValueError("count: only with tokens")
        if len(set(self.per)) != len(self.per):
            raise ValueError("per: the same word stands here twice")
        return self


class RuleOverride(_Section):
    """What a tenant's or key's entry changes of one rule: the measure's figure or `shadow`."""

    requests: Count | None = None
    tokens: Count | None = None
    concurrent: Count | None = None
    shadow: StrictBool | None = None


class KeyEntry(_Section):
    """One key of a tenant."""

    plan: Name | None = None
    override: dict[str, RuleOverride] = {}


class TenantEntry(_Section):
    """One tenant: its plan, what it has beyond it, and its keys."""

    plan: Name | None = None
    override: dict[str, RuleOverride] = {}
    keys: dict[str, KeyEntry] = {}


# What holds where config.yaml names no plan: bounded, and generous enough for a first team.
STANDARD_PLAN = (
    Rule(name="key-requests", per=("key",), requests=600, window="1m"),
    Rule(name="key-tokens", per=("key", "model"), tokens=200_000, window="1m"),
    Rule(name="key-concurrency", per=("key",), concurrent=64),
    Rule(name="tenant-month", per=("tenant",), tokens=50_000_000, window="month"),
)

StoreUrl = Annotated[StrictStr, StringConstraints(pattern=r"^(memory|rediss?://\S+)$")]


class Limits(_Section):
    """Who may spend how much, and where that is counted."""

    store: StoreUrl = "memory"
    on_store_failure: Literal["local", "allow", "deny"] = "local"
    store_timeout: Annotated[Duration, Field(ge=0.001, le=10)] = 0.1
    expected_processes: Positive = 1
    lease: Annotated[Duration, Field(ge=1, le=3600)] = 30.0
    default_plan: Name | None = None
    plans: Annotated[dict[Name, tuple[Rule, ...]], Field(min_length=1)] = {"standard": STANDARD_PLAN}
    tenants: dict[Name, TenantEntry] = {}

    @property
    def fallback_plan(self) -> str:
        """The plan of a principal that names none: `default_plan`, else the only plan there is, else `standard`."""
        if self.default_plan is None and len(self.plans) == 1:
            return next(iter(self.plans))
        return self.default_plan or "standard"

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.fallback_plan not in self.plans:
            raise ValueError(f"default_plan: there is no plan {self.fallback_plan!r}; plans: {', '.join(self.plans)}")
        for plan, rules in self.plans.items():
            names = [rule.name for rule in rules]
            if len(set(names)) != len(names):
                raise ValueError(f"plans.{plan}: two rules have the same name")
        known = {rule.name: rule for rules in self.plans.values() for rule in rules}
        for tenant, entry in self.tenants.items():
            places = [(f"tenants.{tenant}", entry.plan, entry.override)]
            places += [(f"tenants.{tenant}.keys.{key}", one.plan, one.override) for key, one in entry.keys.items()]
            for where, plan_name, overrides in places:
                if plan_name is not None and plan_name not in self.plans:
                    raise ValueError(f"{where}.plan: there is no plan {plan_name!r}")
                for name, override in overrides.items():
                    _check_override(where, name, override, known.get(name))
        return self


def _check_override(where: str, name: str, override: RuleOverride, rule: Rule | None) -> None:
    if rule is None:
        raise ValueError(f"{where}.override: no plan has a rule {name!r}")
    for measure in ("requests", "tokens", "concurrent"):
        if getattr(override, measure) is not None and getattr(rule, measure) is None:
            raise ValueError(f"{where}.override.{name}: the rule does not limit {measure}")


class Pricing(_Section):
    """US dollars for a million tokens, shown by GET /v1/models."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]


class ModelEntry(_Section):
    """A model that clients may name."""

    pool: Name
    aliases: tuple[Name, ...] = ()
    served_name: Name | None = None
    default_output_tokens: Positive = 1024
    tool_choice: tuple[Literal["auto", "none", "required", "named"], ...] = ("auto", "none")
    content_parts: tuple[Name, ...] = ("text", "image_url")
    owned_by: Name = "gateway"
    created: Count = 0
    max_model_len: Positive | None = None
    pricing: Pricing | None = None


class ReplicaEntry(_Section):
    """One engine server. A bare URL is enough."""

    url: Url
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    served_name: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class Timeouts(_Section):
    """How long an engine may take: to accept, to a stream's first event, between bytes, and to a whole answer.

    An answer that is not streamed begins when it is finished, so `answer` bounds it and not `first_byte`.
    """

    connect: Annotated[Duration, Field(gt=0)] = 2.0
    first_byte: Annotated[Duration, Field(gt=0)] = 120.0
    idle: Annotated[Duration, Field(gt=0)] = 60.0
    answer: Annotated[Duration, Field(gt=0)] = 600.0


class Health(_Section):
    """Active probing of every replica."""

    path: Annotated[StrictStr, StringConstraints(pattern=r"^/\S*$")] = "/health"
    interval: Annotated[Duration, Field(ge=0.05)] = 5.0
    unhealthy_after: Positive = 3
    healthy_after: Positive = 1


class PoolEntry(_Section):
    """Replicas that serve the same model."""

    engine: Literal["vllm", "sglang", "tgi", "llamacpp", "openai"] = "vllm"
    replicas: Annotated[tuple[ReplicaEntry, ...], Field(min_length=1)]
    api_key: SecretStr | None = None
    balance: Literal["least_requests"] = "least_requests"
    attempts: Annotated[Positive, Field(le=10)] = 3
    timeouts: Timeouts = Timeouts()
    health: Health = Health()

    @field_validator("replicas")
    @classmethod
    def _distinct(cls, replicas: tuple[ReplicaEntry, ...]) -> tuple[ReplicaEntry, ...]:
        if len({replica.url for replica in replicas}) != len(replicas):
            raise ValueError("the same URL stands here twice")
        return replicas


# Each lets a tenant reach past the model: queue order, other tenants' caches, the host, or how answers are metered.
BLOCKED_FIELDS = (
    "priority",  # jumps vLLM's and SGLang's queue
    "kv_transfer_params",  # reads or writes another server's KV cache
    "ec_transfer_params",  # as above, for encoder caches
    "chat_template",  # runs a client's Jinja on the engine
    "custom_logit_processor",  # runs a client's code on the engine
    "lora_path",  # loads a file of the engine's host
    "session_params",  # attaches to another session's KV cache
    "bootstrap_host",  # points disaggregated serving at another host
    "bootstrap_port",
    "bootstrap_room",
    "prompt_embeds",  # deserialises tensors of the client
    "return_token_ids",  # changes what events carry, and with it what is counted
)


class Requests(_Section):
    """What bodies may hold, and how long heads and bodies may take to arrive."""

    max_depth: Annotated[Positive, Field(le=128)] = 64
    blocked_fields: tuple[Name, ...] = BLOCKED_FIELDS
    head_timeout: Annotated[Duration, Field(gt=0)] = 30.0
    body_timeout: Annotated[Duration, Field(gt=0)] = 30.0


class Metrics(_Section):
    """Bounds on what a scrape can hold."""

    max_tenants: Count = 200


class Logging(_Section):
    """One line an event, on standard output."""

    format: Literal["json", "text"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section):
    """The whole of config.yaml."""

    server: Server = Server()
    admin: Admin = Admin()
    auth: Auth
    limits: Limits = Limits()
    models: Annotated[dict[Name, ModelEntry], Field(min_length=1)]
    pools: Annotated[dict[Name, PoolEntry], Field(min_length=1)]
    requests: Requests = Requests()
    metrics: Metrics = Metrics()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _names_meet(self) -> Self:
        taken: dict[str, str] = {name: name for name in self.models}
        for name, model in self.models.items():
            if model.pool not in self.pools:
                raise ValueError(f"models.{name}.pool: there is no pool {model.pool!r}; pools: {', '.join(self.pools)}")
            for alias in model.aliases:
                if taken.setdefault(alias, name) != name or alias in self.models:
                    raise ValueError(f"models.{name}.aliases: {alias!r} already means {taken[alias]!r}")
        return self
