"""The figures of a scrape in, the few that an operator looks at first out. No I/O."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gateway.telemetry.figures import Figures

# By what a call that did not end well was counted, and the words of the reason: the labels of its metric. A call may be
# counted by several. What ended well, and what was let through, is counted there too.
_AMISS = {
    "gateway_requests_total": ("status", ("status", "outcome")),
    "gateway_refusals_total": ("code", ("code",)),
    "gateway_limit_decisions_total": ("limit", ("rule",)),
    "gateway_auth_failures_total": ("token", ("reason",)),
    "gateway_waiting_refused_total": ("queue", ("pool", "reason")),
    "gateway_retries_refused_total": ("retry", ("pool",)),
    "gateway_answers_broken_total": ("broken", ("model", "reason")),
}
_WELL = {("outcome", "ok"), ("decision", "admitted"), ("decision", "shadow")}

# The samples that are looked at.
NAMES = (
    *_AMISS,
    "gateway_background_failures_total",
    "gateway_journal_pending",
    "gateway_key_set_age_seconds",
    "gateway_key_set_refreshes_total",
    "gateway_requests_in_flight",
    "gateway_settings_age_seconds",
    "gateway_settings_entries",
    "gateway_settlements_dropped_total",
    "gateway_store_failures_total",
    "gateway_streams_open",
    "gateway_waiting_calls",
    "gateway_worker_restarts_total",
    "gateway_workers",
)

# What was counted, and under which words.
Amiss = Counter[tuple[str, str]]


def amiss(figures: Figures) -> Amiss:
    """Return how many calls did not end well since the start, by what."""
    found: Amiss = Counter()
    for name, (by, words) in _AMISS.items():
        for labels, value in _samples(figures, name):
            if value and not _WELL & labels.items():
                found[by, " ".join(labels[word] for word in words)] += int(value)
    return found


def calls(figures: Figures) -> dict[str, int]:
    """Return how many are under way, streams among them, and how many wait for a replica."""
    return {
        "in_flight": _total(figures, "gateway_requests_in_flight"),
        "streams": _total(figures, "gateway_streams_open"),
        "waiting": _total(figures, "gateway_waiting_calls"),
    }


def workers(figures: Figures) -> dict[str, int] | None:
    """Return how many answered, how many did not, and how many were started in the place of others; None: of one."""
    states = {labels["state"]: int(value) for labels, value in _samples(figures, "gateway_workers")}
    return states | {"restarts": _total(figures, "gateway_worker_restarts_total")} if states else None


def store(figures: Figures) -> dict[str, Any]:
    """Return how the limit store does: what failed since the start, and what it said of settings, and when."""
    entries = {
        (labels["settings"], labels["state"]): int(value)
        for labels, value in _samples(figures, "gateway_settings_entries")
    }
    return {
        "failures": {
            labels["operation"]: int(value) for labels, value in _samples(figures, "gateway_store_failures_total")
        },
        "settings": [
            {
                "settings": labels["settings"],
                "in_force": entries[labels["settings"], "in_force"],
                "left_out": entries[labels["settings"], "left_out"],
                "age_s": round(value, 1),
            }
            for labels, value in _samples(figures, "gateway_settings_age_seconds")
        ],
        "journal_pending": _total(figures, "gateway_journal_pending"),
        "settlements_dropped": _total(figures, "gateway_settlements_dropped_total"),
    }


def defects(figures: Figures) -> int:
    """Return how many failures there were, outside of calls, that nothing is made for."""
    return _total(figures, "gateway_background_failures_total")


def issuers(figures: Figures) -> list[dict[str, Any]]:
    """Return how old each issuer's key set is, and how many fetches of it failed since the start."""
    failed: Counter[str] = Counter()
    for labels, value in _samples(figures, "gateway_key_set_refreshes_total"):
        if labels["result"] != "ok":
            failed[labels["issuer"]] += int(value)
    ages = _samples(figures, "gateway_key_set_age_seconds")
    return [{"issuer": one["issuer"], "age_s": round(age, 1), "failed": failed[one["issuer"]]} for one, age in ages]


def _total(figures: Figures, name: str) -> int:
    return int(sum(value for _, value in _samples(figures, name)))


def _samples(figures: Figures, name: str) -> Iterator[tuple[dict[str, str], float]]:
    family = figures.get(name.removesuffix("_total"))
    if family is not None:
        yield from ((dict(labels), value) for (sample, labels), value in family.samples.items() if sample == name)
