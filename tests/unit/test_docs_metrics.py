import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway import config
from gateway.clock import SystemClock
from gateway.telemetry import buckets
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.replicas import ReplicaState
from gateway.telemetry.settings import SettingsState
from gateway.telemetry.tenants import TenantLabels
from gateway.workers import merge
from gateway.workers.crew import Crew
from gateway.workers.pages import CrewCollector
from tests.documents import rows, section
from tests.unit.finished_calls import MODEL, finished

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


class Row(NamedTuple):
    type: str
    labels: frozenset[str]
    meaning: str


@pytest.fixture
def scraped() -> dict[str, Row]:
    metrics = Metrics([MODEL], TenantLabels([], max_tenants=1))
    feed_everything(metrics)
    metrics.registry.register(CrewCollector(Crew(config.Server(workers=2), [], SystemClock(), lines=0)))
    return dict(rows_of(generate_latest(metrics.registry).decode()))


def feed_everything(metrics: Metrics) -> None:
    metrics.record(finished(usage_missing="not_reported", broken_by="reset", error_code="upstream_error"))
    metrics.call_started(MODEL)
    metrics.stream_opened(MODEL)
    metrics.limit_decided("key-requests", "admitted")
    metrics.store_answered("reserve", 0.001)
    metrics.plan_unknown()
    metrics.settlement_dropped()
    metrics.watch_journal(lambda: 1)
    metrics.store_failed("reserve")
    metrics.attempt("llama-8b", "a:1", result="ok")
    metrics.retry_refused("llama-8b")
    metrics.fallback(MODEL, "llama-70b", result="answered")
    metrics.settings_failed("overrides")
    metrics.waited("llama-8b", "high", 0.1)
    metrics.waiting_refused("llama-8b", "full")
    metrics.watch_waiting(lambda: [(("llama-8b", "high"), 1)])
    metrics.watch_settings(lambda: [SettingsState("overrides", in_force=1, left_out=0, age_s=0.5)])
    metrics.watch_replicas(
        lambda: [ReplicaState("llama-8b", "a:1", True, 0, breaker_open=False, running=3, waiting=1, cache_used=0.5)]
    )
    metrics.discovery_refresh("llama-8b", "changed")
    metrics.watch_discovery(lambda: [("llama-8b", 1.5)])
    metrics.watch_estimates(lambda: [(MODEL, 4.0)])
    metrics.auth_failure("expired_token")
    metrics.key_set_refresh("https://identity.example.com", "ok")
    metrics.identity_asked("https://identity.example.com", "ok", 0.01)
    metrics.watch_key_sets(lambda: [("https://identity.example.com", 12.5)])
    metrics.background_failed()
    metrics.event_loop_lag(0.001)


def rows_of(text: str) -> Iterator[tuple[str, Row]]:
    for family in parse(text):
        if family.name.startswith("gateway_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert family.samples, f"nothing feeds {name}"
            yield name, Row(family.type, frozenset(labels), family.documentation)


def documented() -> dict[str, Row]:
    row = re.compile(r"^\| `(gateway_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.+) \|$", re.MULTILINE)
    found = row.findall(DOCS.read_text(encoding="utf-8"))
    return {name: Row(kind, frozenset(re.findall(r"\w+", labels)), meaning) for name, kind, labels, meaning in found}


def test_the_documented_metrics_are_those_of_a_scrape_and_no_others(scraped: dict[str, Row]) -> None:
    assert documented() == scraped


def test_every_label_is_explained() -> None:
    explained = DOCS.read_text(encoding="utf-8").split("## Labels")[1].split("## Buckets")[0]
    own_words = {"status", "result", "operation", "reason", "version", "python"}
    for label in {label for row in documented().values() for label in row.labels} - own_words:
        assert re.search(rf"^\| [^|]*\b{label}\b", explained, re.MULTILINE), label


def test_the_documented_buckets_are_the_histograms_own() -> None:
    bounds = {
        "gateway_request_duration_seconds": buckets.DURATION_S,
        "gateway_first_byte_seconds": buckets.FIRST_BYTE_S,
        "gateway_output_token_seconds": buckets.OUTPUT_TOKEN_S,
        "gateway_overhead_seconds": buckets.OVERHEAD_S,
        "gateway_waiting_seconds": buckets.WAITING_S,
        "gateway_store_seconds": buckets.STORE_S,
        "gateway_identity_seconds": buckets.IDENTITY_S,
        "gateway_event_loop_lag_seconds": buckets.LOOP_LAG_S,
    }
    text = DOCS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) (\S+) \| (\d+) (\S+) \|$", text, re.MULTILINE)
    unit = {"µs": 1e6, "ms": 1e3, "s": 1}
    documented = {name: (int(low) / unit[lows], int(high) / unit[highs]) for name, low, lows, high, highs in rows}
    assert documented == {name: pytest.approx((few[0], few[-1])) for name, few in bounds.items()}


def test_names_and_labels_that_dashboards_rely_on_stay(scraped: dict[str, Row]) -> None:
    by_model = {"endpoint", "model"}
    fixed = {
        "gateway_requests_total": {*by_model, "tenant", "status", "outcome"},
        "gateway_tokens_total": {"model", "tenant", "kind", "source"},
        "gateway_request_duration_seconds": by_model,
        "gateway_first_byte_seconds": by_model,
        "gateway_output_token_seconds": by_model,
        "gateway_overhead_seconds": {"endpoint"},
        "gateway_requests_in_flight": {"model"},
        "gateway_streams_open": {"model"},
        "gateway_limit_decisions_total": {"rule", "decision"},
        "gateway_store_seconds": {"operation"},
        "gateway_store_failures_total": {"operation"},
        "gateway_settlements_dropped_total": set(),
        "gateway_journal_pending": set(),
        "gateway_plans_unknown_total": set(),
        "gateway_upstream_attempts_total": {"pool", "replica", "result"},
        "gateway_replica_up": {"pool", "replica"},
        "gateway_replica_in_flight": {"pool", "replica"},
        "gateway_breaker_open": {"pool", "replica"},
        "gateway_retries_refused_total": {"pool"},
        "gateway_fallbacks_total": {"model", "fallback", "result"},
        "gateway_bytes_per_token": {"model"},
        "gateway_usage_missing_total": {"model", "reason"},
        "gateway_answers_broken_total": {"model", "reason"},
        "gateway_auth_failures_total": {"reason"},
        "gateway_key_set_refreshes_total": {"issuer", "result"},
        "gateway_key_set_age_seconds": {"issuer"},
        "gateway_identity_seconds": {"issuer", "result"},
        "gateway_event_loop_lag_seconds": set(),
    }
    assert {name: set(scraped[name].labels) for name in fixed} == fixed


def test_every_gauge_that_is_not_added_up_is_named() -> None:
    odd = {name for name, rule in merge.GAUGES.items() if rule is not sum}
    table = rows(section("metrics", "Several workers"))
    assert {name for row in table for name in re.findall(r"`(\w+)`", row[0])} == odd
