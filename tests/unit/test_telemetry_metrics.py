import secrets
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest  # noqa: TID251 to compare with
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway.calls.usage import Usage
from gateway.telemetry import buckets
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.replicas import ReplicaState
from gateway.telemetry.tenants import TenantLabels
from tests.unit.finished_calls import MODEL, finished


@pytest.fixture
def metrics() -> Metrics:
    return Metrics([MODEL], TenantLabels([], max_tenants=200))


def value(metrics: Metrics, sample: str, **labels: Any) -> float | None:
    return metrics.registry.get_sample_value(sample, {name: str(label) for name, label in labels.items()})


def test_a_call_is_counted_under_its_status_and_outcome(metrics: Metrics) -> None:
    metrics.record(finished(status=499, ending="client_gone"))
    labels = {"endpoint": "chat", "model": MODEL, "tenant": "acme"}
    assert value(metrics, "gateway_requests_total", **labels, status=499, outcome="client_gone") == 1
    assert value(metrics, "gateway_requests_total", **labels, status=200, outcome="ok") is None


def test_tokens_are_counted_by_kind_and_source(metrics: Metrics) -> None:
    metrics.record(finished(usage=Usage(prompt=100, completion=20, cached=40, reasoning=5)))
    metrics.record(finished(usage=Usage(prompt=1, completion=2, source="estimated")))
    labels = {"model": MODEL, "tenant": "acme"}
    engine = {
        kind: value(metrics, "gateway_tokens_total", **labels, kind=kind, source="engine")
        for kind in ("prompt", "completion", "cached", "reasoning")
    }
    assert engine == {"prompt": 100, "completion": 20, "cached": 40, "reasoning": 5}
    assert value(metrics, "gateway_tokens_total", **labels, kind="completion", source="estimated") == 2


def test_times_of_a_stream_are_observed(metrics: Metrics) -> None:
    metrics.record(finished(duration_s=1.5, first_byte_s=0.5, overhead_s=0.0002, usage=Usage(10, 11)))
    labels = {"endpoint": "chat", "model": MODEL}
    assert value(metrics, "gateway_request_duration_seconds_sum", **labels) == 1.5
    assert value(metrics, "gateway_first_byte_seconds_sum", **labels) == 0.5
    assert value(metrics, "gateway_output_token_seconds_sum", **labels) == pytest.approx(0.1)
    assert value(metrics, "gateway_overhead_seconds_sum", endpoint="chat") == 0.0002


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": False},
        {"ending": "broken"},
        {"first_byte_s": None},
        {"usage": None},
        {"usage": Usage(10, 1)},
        {"usage": Usage(10, 11, source="estimated")},
    ],
)
def test_time_between_tokens_is_left_out_where_it_is_not_known(metrics: Metrics, changes: dict[str, Any]) -> None:
    metrics.record(finished(**changes))
    assert value(metrics, "gateway_output_token_seconds_count", endpoint="chat", model=MODEL) is None


def test_the_first_byte_of_a_whole_answer_is_no_first_byte_time(metrics: Metrics) -> None:
    metrics.record(finished(stream=False))
    assert value(metrics, "gateway_first_byte_seconds_count", endpoint="chat", model=MODEL) is None


def test_an_answer_without_usage_is_counted_under_its_reason(metrics: Metrics) -> None:
    metrics.record(finished(usage=None, usage_missing="engine_died"))
    assert value(metrics, "gateway_usage_missing_total", model=MODEL, reason="engine_died") == 1


def test_an_answer_that_broke_is_counted_under_its_reason(metrics: Metrics) -> None:
    metrics.record(finished(ending="broken", broken_by="idle_timeout"))
    assert value(metrics, "gateway_answers_broken_total", model=MODEL, reason="idle_timeout") == 1


def test_a_refusal_is_counted_under_its_code(metrics: Metrics) -> None:
    metrics.record(finished(status=503, ending="upstream_failed", error_code="overloaded"))
    metrics.record(finished(model="typo", status=404, ending="refused", error_code="model_not_found"))
    assert value(metrics, "gateway_refusals_total", model=MODEL, code="overloaded") == 1
    assert value(metrics, "gateway_refusals_total", model="unknown", code="model_not_found") == 1


def test_calls_and_streams_under_way_come_back_to_zero(metrics: Metrics) -> None:
    ended, closed = metrics.call_started(MODEL), metrics.stream_opened(MODEL)
    assert value(metrics, "gateway_requests_in_flight", model=MODEL) == 1
    assert value(metrics, "gateway_streams_open", model=MODEL) == 1
    closed()
    ended()
    assert value(metrics, "gateway_requests_in_flight", model=MODEL) == 0
    assert value(metrics, "gateway_streams_open", model=MODEL) == 0


def test_replicas_are_read_at_each_scrape_and_forgotten_when_they_leave(metrics: Metrics) -> None:
    replicas = [ReplicaState("llama-8b", "a:1", True, 3, False), ReplicaState("llama-8b", "b:1", False, 0, True)]
    metrics.watch_replicas(lambda: replicas)
    assert value(metrics, "gateway_replica_up", pool="llama-8b", replica="a:1") == 1
    assert value(metrics, "gateway_replica_up", pool="llama-8b", replica="b:1") == 0
    assert value(metrics, "gateway_replica_in_flight", pool="llama-8b", replica="a:1") == 3
    assert value(metrics, "gateway_breaker_open", pool="llama-8b", replica="a:1") == 0
    assert value(metrics, "gateway_breaker_open", pool="llama-8b", replica="b:1") == 1
    del replicas[0]
    assert value(metrics, "gateway_replica_up", pool="llama-8b", replica="a:1") is None


def test_ten_thousand_random_tenants_and_models_leave_a_bounded_scrape(metrics: Metrics) -> None:
    for _ in range(10_000):
        name = secrets.token_hex(8)
        metrics.record(finished(tenant=name, model=name, ending="refused", status=404, usage=None))
        metrics.record(finished(tenant=secrets.token_hex(8)))
        metrics.call_started(name)()
    text = generate_latest(metrics.registry)
    assert len(samples(text, "gateway_requests_total", "tenant")) == 201
    assert samples(text, "gateway_requests_total", "model") == {MODEL, "unknown"}
    assert samples(text, "gateway_requests_in_flight", "model") == {"unknown"}
    assert len(text) < 1_000_000


def test_a_tenant_that_no_encoding_can_hold_leaves_the_scrape_whole(metrics: Metrics) -> None:
    metrics.record(finished(tenant="\ud800"))
    assert samples(generate_latest(metrics.registry), "gateway_requests_total", "tenant") == {"other"}


def test_a_tenant_or_model_called_unknown_is_counted_with_nobody_only_where_it_has_that_label() -> None:
    bounded, full = (Metrics(["unknown"], TenantLabels([], max_tenants=most)) for most in (200, 0))
    for metrics in (bounded, full):
        for tenant in (None, "unknown"):
            for model in (None, "unknown", "other"):
                metrics.record(finished(tenant=tenant, model=model))
    labels = {"endpoint": "chat", "model": "unknown", "status": 200, "outcome": "ok"}
    assert value(bounded, "gateway_requests_total", **labels, tenant="unknown") == 6
    assert value(full, "gateway_requests_total", **labels, tenant="unknown") == 3
    assert value(full, "gateway_requests_total", **labels, tenant="other") == 3


def test_rules_that_all_admit_a_call_count_as_if_each_had_been_told(metrics: Metrics) -> None:
    metrics.limits_admitted(("key-requests", "tenant-tokens"))
    metrics.limits_admitted(("key-requests",))
    metrics.limit_decided("key-requests", "admitted")
    metrics.limit_decided("key-requests", "refused")
    name = "gateway_limit_decisions_total"
    assert value(metrics, name, rule="key-requests", decision="admitted") == 3
    assert value(metrics, name, rule="key-requests", decision="refused") == 1
    assert value(metrics, name, rule="tenant-tokens", decision="admitted") == 1


@given(st.lists(st.sampled_from((0.0, *buckets.STORE_S, 0.00019, 9.9, 10.1, 1e9)), min_size=1))
def test_a_histogram_is_exposed_as_the_library_would(seconds: list[float]) -> None:
    registry = CollectorRegistry()
    library = Histogram(
        "gateway_store_seconds", "Round trips.", ["operation"], buckets=buckets.STORE_S, registry=registry
    )
    metrics = Metrics([], TenantLabels([], max_tenants=0))
    for one in seconds:
        library.labels("reserve").observe(one)
        metrics.store_answered("reserve", one)
    lines = [line for line in generate_latest(metrics.registry).splitlines() if b"gateway_store_seconds" in line]
    theirs = [line for line in generate_latest(registry).splitlines() if b"_created" not in line]
    assert lines[2:] == theirs[2:]


def test_a_scrape_in_a_thread_beside_calls_sees_every_series_whole_and_none_twice(metrics: Metrics) -> None:
    with ThreadPoolExecutor(1) as thread:
        scrape = thread.submit(generate_latest, metrics.registry)
        scrapes = [scrape]
        for number in count():
            if len(scrapes) > 4 and number >= 20_000:
                break
            metrics.record(finished(tenant=str(number % 200), status=200 + number % 50))
            metrics.limits_admitted((str(number % 100), str(number % 99)))
            if scrape.done():
                scrape = thread.submit(generate_latest, metrics.registry)
                scrapes.append(scrape)
    for text in (*(scrape.result() for scrape in scrapes), generate_latest(metrics.registry)):
        found = [line.rpartition(b" ")[0] for line in text.splitlines() if not line.startswith(b"#")]
        assert len(found) == len(set(found))
    assert value(metrics, "gateway_request_duration_seconds_count", endpoint="chat", model=MODEL) == number


def test_both_formats_parse_and_follow_the_naming_rules(metrics: Metrics) -> None:
    metrics.record(finished(tenant='a"b\\c'))
    families = list(parse(generate_latest(metrics.registry).decode()))
    openmetrics = choose_encoder("application/openmetrics-text")[0](metrics.registry).decode()
    again = parse_openmetrics(openmetrics)  # type: ignore[no-untyped-call]  # the library leaves it unannotated
    assert {family.name for family in families} == {family.name for family in again}
    for family in families:
        assert family.documentation
        assert not family.name.endswith("_created")
        assert family.name.startswith(("gateway_", "process_", "python_"))
        assert family.type != "histogram" or family.name.endswith("_seconds")
        suffixes = {sample.name.removeprefix(family.name) for sample in family.samples}
        assert suffixes <= {"counter": {"_total"}, "histogram": {"_bucket", "_sum", "_count"}}.get(family.type, {""})


def samples(text: bytes, name: str, label: str) -> set[str]:
    families = parse(text.decode())
    return {sample.labels[label] for family in families for sample in family.samples if sample.name == name}
