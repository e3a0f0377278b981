"""`limits`: plans of rules, who has which plan, and where is counted."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictStr,
    StringConstraints,
    model_validator,
)

from gateway.config import store_url, units
from gateway.config.section import Count, Duration, Name, Positive, Section

Per = Literal["key", "tenant", "model", "pool"]
Priority = Literal["high", "normal", "low"]
OnStoreFailure = Literal["local", "allow", "deny"]
MIN_WINDOW_S = 0.1
MAX_WINDOW_S = 366 * 86400.0
WEIGHT_DECIMALS = 3


def _window(value: object) -> object:
    return value if value in {"day", "month"} else units.seconds(value)


def _weight(value: float) -> float:
    if round(value, WEIGHT_DECIMALS) != value:
        raise ValueError(f"expected at most {WEIGHT_DECIMALS} decimals")
    return value


Weight = Annotated[float, Field(strict=True, ge=0, le=1000), AfterValidator(_weight)]


class Weights(Section):
    """What a token of each kind counts. None: `cached` as `input`, `reasoning` as `output`."""

    input: Weight = 1.0
    cached: Weight | None = None
    output: Weight = 1.0
    reasoning: Weight | None = None

    def of(self, kind: str) -> float:
        """Return the weight of `kind`, whether it stands here or not."""
        weight: float | None = getattr(self, kind)
        return self.of(_PART_OF[kind]) if weight is None else weight


_PART_OF = {"cached": "input", "reasoning": "output"}
# The kinds that each `count` counts.
KINDS = {
    "total": ("input", "cached", "output", "reasoning"),
    "input": ("input", "cached"),
    "output": ("output", "reasoning"),
}


class Rule(Section):
    """One limit: for each combination of `per`, at most so much of exactly one measure in a window."""

    name: Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    per: tuple[Per, ...] = ()
    requests: Count | None = None
    tokens: Count | None = None
    concurrent: Count | None = None
    window: Annotated[float | Literal["day", "month"] | None, BeforeValidator(_window)] = None
    count: Literal["total", "input", "output"] = "total"
    weights: Weights = Weights()
    shadow: StrictBool = False
    models: tuple[Name, ...] = ()
    on_store_failure: OnStoreFailure | None = None

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
        if self.weights.model_fields_set and self.tokens is None:
            raise ValueError("weights: only with tokens")
        for kind in KINDS["total"]:
            if kind in self.weights.model_fields_set and kind not in KINDS[self.count]:
                raise ValueError(f"weights.{kind}: this rule counts {self.count} tokens only")
        if not any(self.weights.of(kind) for kind in KINDS[self.count]):
            raise ValueError("weights: all are 0, so that the rule counts nothing")
        if len(set(self.per)) != len(self.per):
            raise ValueError("per: the same word stands here twice")
        return self


class RuleOverride(Section):
    """What a tenant's or key's entry changes of one rule: the measure's figure or `shadow`."""

    requests: Count | None = None
    tokens: Count | None = None
    concurrent: Count | None = None
    shadow: StrictBool | None = None


class KeyEntry(Section):
    """One key of a tenant."""

    plan: Name | None = None
    override: dict[str, RuleOverride] = {}


class TenantEntry(Section):
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


def _store(text: str) -> str:
    if text != "memory":
        store_url.parse(text)
    return text


StoreText = Annotated[StrictStr, AfterValidator(_store)]


class Events(Section):
    """A stream of events in the store, one for each booking; for all tenants, or one stream for each."""

    stream: Literal["shared", "tenant"] = "shared"
    max_length: Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=1000, le=10**9)] = 1_000_000


class Limits(Section):
    """Who may spend how much, and where that is counted."""

    store: StoreText = "memory"
    on_store_failure: OnStoreFailure = "local"
    store_timeout: Annotated[Duration, Field(ge=0.001, le=10)] = 0.1
    expected_processes: Positive = 1
    journal: Annotated[StrictStr, StringConstraints(min_length=1)] | None = None
    lease: Annotated[Duration, Field(ge=1, le=3600)] = 30.0
    ledger_retention: Annotated[Duration, Field(ge=86400, le=3660 * 86400)] = 400 * 86400.0
    events: Events | None = None
    default_plan: Name | None = None
    plans: Annotated[dict[Name, tuple[Rule, ...]], Field(min_length=1)] = {"standard": STANDARD_PLAN}
    priorities: dict[Name, Priority] = {}
    tenants: dict[Name, TenantEntry] = {}

    _workers: int = PrivateAttr(default=1)

    @property
    def processes(self) -> int:
        """How many processes share every limit while the store is away, each by its own counts."""
        return self.expected_processes * self._workers

    def divide_by(self, workers: int) -> None:
        """Have each gateway be so many processes: for the config as a whole, which knows."""
        self._workers = workers

    @property
    def fallback_plan(self) -> str:
        """The plan of a principal that names none: `default_plan`, else the only plan there is, else `standard`."""
        if self.default_plan is None and len(self.plans) == 1:
            return next(iter(self.plans))
        return self.default_plan or "standard"

    @property
    def denies_all(self) -> bool:
        """Whether every call is refused while the store is away, whatever its plan; without overrides of `shadow`."""
        return all(map(self._denies, self.plans.values()))

    def _denies(self, rules: tuple[Rule, ...]) -> bool:
        """Whether a plan lets nobody through: one of its rules denies for all models, or the default's word is left."""
        enforced = [(rule.models, rule.on_store_failure or self.on_store_failure) for rule in rules if not rule.shadow]
        if any(word == "deny" and not models for models, word in enforced):
            return True
        return self.on_store_failure == "deny" and all(word == "deny" for _, word in enforced)

    @model_validator(mode="after")
    def _a_clusters_events_are_with_their_tenants(self) -> Self:
        of_all = self.events is not None and self.events.stream == "shared"
        if of_all and self.store != "memory" and store_url.parse(self.store).topology == "cluster":
            raise ValueError(
                "events.stream: expected tenant; on a cluster each tenant's bookings are in a slot of its own"
            )
        return self

    @model_validator(mode="after")
    def _a_journal_is_for_a_store_that_can_be_away(self) -> Self:
        if self.journal is not None and self.store == "memory":
            raise ValueError("journal: only with a shared store; memory is never away")
        return self

    @model_validator(mode="after")
    def _events_are_for_whoever_else_reads_the_store(self) -> Self:
        if self.events is not None and self.store == "memory":
            raise ValueError("events: only with a shared store; nobody else reads this process's memory")
        return self

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.fallback_plan not in self.plans:
            raise ValueError(f"default_plan: there is no plan {self.fallback_plan!r}; plans: {', '.join(self.plans)}")
        for plan, rules in self.plans.items():
            names = [rule.name for rule in rules]
            if len(set(names)) != len(names):
                raise ValueError(f"plans.{plan}: two rules have the same name")
        for plan in self.priorities:
            if plan not in self.plans:
                raise ValueError(f"priorities: there is no plan {plan!r}; plans: {', '.join(self.plans)}")
        known = [rule for rules in self.plans.values() for rule in rules]
        for tenant, entry in self.tenants.items():
            places = [(f"tenants.{tenant}", entry.plan, entry.override)]
            places += [(f"tenants.{tenant}.keys.{key}", one.plan, one.override) for key, one in entry.keys.items()]
            for where, plan_name, overrides in places:
                if plan_name is not None and plan_name not in self.plans:
                    raise ValueError(f"{where}.plan: there is no plan {plan_name!r}")
                for name, override in overrides.items():
                    _check_override(where, name, override, [rule for rule in known if rule.name == name])
        return self


def _check_override(where: str, name: str, override: RuleOverride, rules: Sequence[Rule]) -> None:
    """See that a plan's rule of that name has each figure: those of the plans may differ."""
    if not rules:
        raise ValueError(f"{where}.override: no plan has a rule {name!r}")
    for measure in ("requests", "tokens", "concurrent"):
        if getattr(override, measure) is not None and all(getattr(rule, measure) is None for rule in rules):
            raise ValueError(f"{where}.override.{name}: the rule does not limit {measure}")
