import secrets
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway.calls.usage import Usage
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


def test_calls_and_streams_under_way_come_back_to_zero(metrics: Metrics) -> None:
    metrics.call_started(MODEL)
    metrics.stream_opened(MODEL)
    assert value(metrics, "gateway_requests_in_flight", model=MODEL) == 1
    assert value(metrics, "gateway_streams_open", model=MODEL) == 1
    metrics.stream_closed(MODEL)
    metrics.call_ended(MODEL)
    assert value(metrics, "gateway_requests_in_flight", model=MODEL) == 0
    assert value(metrics, "gateway_streams_open", model=MODEL) == 0


def test_replicas_are_read_at_each_scrape_and_forgotten_when_they_leave(metrics: Metrics) -> None:
    replicas = [ReplicaState("llama-8b", "a:1", up=True, in_flight=3), ReplicaState("llama-8b", "b:1", False, 0)]
    metrics.watch_replicas(lambda: replicas)
    assert value(metrics, "gateway_replica_up", pool="llama-8b", replica="a:1") == 1
    assert value(metrics, "gateway_replica_up", pool="llama-8b", replica="b:1") == 0
    assert value(metrics, "gateway_replica_in_flight", pool="llama-8b", replica="a:1") == 3
    del replicas[0]
    assert value(metrics, "gateway_replica_up", pool="llama-8b", replica="a:1") is None


def test_ten_thousand_random_tenants_and_models_leave_a_bounded_scrape(metrics: Metrics) -> None:
    for _ in range(10_000):
        name = secrets.token_hex(8)
        metrics.record(finished(tenant=name, model=name, ending="refused", status=404, usage=None))
        metrics.record(finished(tenant=secrets.token_hex(8)))
        metrics.call_started(name)
        metrics.call_ended(name)
    text = generate_latest(metrics.registry)
    assert len(samples(text, "gateway_requests_total", "tenant")) == 201
    assert samples(text, "gateway_requests_total", "model") == {MODEL, "unknown"}
    assert samples(text, "gateway_requests_in_flight", "model") == {"unknown"}
    assert len(text) < 1_000_000


def test_a_tenant_that_no_encoding_can_hold_leaves_the_scrape_whole(metrics: Metrics) -> None:
    metrics.record(finished(tenant="\ud800"))
    assert samples(generate_latest(metrics.registry), "gateway_requests_total", "tenant") == {"other"}


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
