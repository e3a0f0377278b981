"""Who calls, and what may be spent: tenants with wide and with tight limits, and the figures that the judge knows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# How many workers each gateway has.
WORKERS = (1, 2, 1)
GATEWAYS = len(WORKERS)
# Calls under way, at most.
CLIENTS = 24
# Of each model its pools, and of each pool its replicas.
MODELS: dict[str, dict[str, tuple[str, ...]]] = {
    "chaos/large": {"large": ("large-0", "large-1")},
    "chaos/small": {"small-a": ("small-0",), "small-b": ("small-1",)},
}
# Whose calls teach the gateway nothing of how long prompts are: what they reserve is known to the token.
UNLEARNED = "chaos/large"
KEYS = 8

# Of which nobody has enough to be refused, and by which every token is found again: of a tenant, of what it has of a
# model, of everybody, and of what everybody has of a pool.
COUNTED = {"name": "counted", "per": ["tenant"], "tokens": 10**12, "window": "month"}
BY_MODEL = {"name": "by-model", "per": ["tenant", "model"], "tokens": 10**12, "window": "month"}
TOGETHER = {"name": "together", "per": [], "tokens": 10**12, "window": "month"}
BY_POOL = {"name": "by-pool", "per": ["pool"], "tokens": 10**12, "window": "month"}


@dataclass(frozen=True)
class Tight:
    """A limit that refuses: `limit` units in `window_s`, in a calendar period that the run is within, or at once."""

    tenant: str
    rule: str
    per_key: bool
    measure: str  # requests, tokens, concurrent
    limit: int
    window_s: float | None = None

    def share(self, workers: int) -> int:
        """Return what one process admits alone, of a gateway that has so many."""
        return max(self.limit // (GATEWAYS * workers), 1)

    def as_rule(self) -> dict[str, Any]:
        window = (
            {} if self.measure == "concurrent" else {"window": "day" if self.window_s is None else f"{self.window_s}s"}
        )
        return {"name": self.rule, "per": ["key" if self.per_key else "tenant"], self.measure: self.limit, **window}


TIGHT = (
    Tight("hasty", "pace", per_key=True, measure="requests", limit=8, window_s=2.0),
    Tight("hasty", "slots", per_key=True, measure="concurrent", limit=3),
    Tight("poor", "daily-calls", per_key=True, measure="requests", limit=24),
    Tight("poor", "daily-tokens", per_key=False, measure="tokens", limit=12_000),
)
TENANTS = ("rich", "hasty", "poor")


def limits(store: str, journal: str, *, lease_s: float) -> dict[str, Any]:
    """Return the section of the config."""
    return {
        "store": store,
        "journal": journal,
        "on_store_failure": "local",
        "expected_processes": GATEWAYS,
        "lease": f"{lease_s}s",
        "plans": {tenant: list(_rules(tenant)) for tenant in TENANTS},
        "tenants": {tenant: {"plan": tenant} for tenant in TENANTS},
        "events": {"stream": "tenant"},
        "default_plan": "rich",
    }


def _rules(tenant: str) -> Iterator[dict[str, Any]]:
    yield from (COUNTED, BY_MODEL, TOGETHER, BY_POOL)
    own = [tight for tight in TIGHT if tight.tenant == tenant]
    yield from [tight.as_rule() for tight in own]
    if not any(tight.measure == "concurrent" for tight in own):
        yield {"name": "many-slots", "per": ["key"], "concurrent": 10**4}
