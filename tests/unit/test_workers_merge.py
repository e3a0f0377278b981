"""Figures of several processes as those of one: what was counted is kept, and nothing of the dead is shown as now."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway.telemetry import figures
from gateway.telemetry.figures import Figures
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.replicas import ReplicaState
from gateway.telemetry.tenants import TenantLabels
from gateway.workers.merge import GAUGES, bounded, grown, here, merge
from tests.unit.finished_calls import MODEL, finished
from tests.unit.test_docs_metrics import feed_everything

TENANTS = ("acme", "globex", "initech")


def process(calls: dict[str, int], *, streams: int = 0, up: bool = True, age_s: float = 1.0) -> Figures:
    """Return the figures of a process that had so many calls of each tenant, and has streams open."""
    metrics = Metrics([MODEL], TenantLabels(TENANTS, max_tenants=5))
    for tenant, count in calls.items():
        for _ in range(count):
            metrics.record(finished(tenant=tenant))
    for _ in range(streams):
        metrics.stream_opened(MODEL)
    metrics.watch_replicas(lambda: [ReplicaState("p", "a:1", up=up, in_flight=streams, breaker_open=not up)])
    metrics.watch_key_sets(lambda: [("https://i", age_s)])
    return figures.read(figures.written(figures.of(metrics.registry)))


def total(found: Figures, name: str, sample: str = "", **labels: str) -> float:
    samples = found[name].samples.items()
    return sum(n for (one, words), n in samples if one == (sample or name) and labels.items() <= dict(words).items())


def requests(found: Figures, **labels: str) -> float:
    return total(found, "gateway_requests", "gateway_requests_total", **labels)


@given(st.lists(st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 3)), min_size=1, max_size=4), st.data())
def test_every_call_is_counted_once_wherever_it_was_and_whoever_ended(
    calls: list[dict[str, int]], data: st.DataObject
) -> None:
    processes = [process(each) for each in calls]
    ended = data.draw(st.integers(0, len(processes)))
    found = merge(processes[ended:], grown(processes[:ended]))
    for tenant in TENANTS:
        expected = sum(each.get(tenant, 0) for each in calls)
        assert (requests(found, tenant=tenant) if "gateway_requests" in found else 0) == expected
    count = "gateway_request_duration_seconds_count"
    assert total(found, "gateway_request_duration_seconds", count) == sum(sum(each.values()) for each in calls)


def test_a_gauge_is_of_those_that_run() -> None:
    one, two, dead = process({}, streams=2, age_s=3), process({}, streams=3, up=False), process({}, streams=7)
    found = merge([one, two], grown([dead]))
    assert total(found, "gateway_streams_open") == 5
    assert total(found, "gateway_replica_up") == 0
    assert total(found, "gateway_breaker_open") == 1
    assert total(found, "gateway_key_set_age_seconds") == 3
    assert total(found, "gateway_build_info") == 1


def test_two_hundred_workers_that_came_and_went_leave_a_scrape_no_larger_and_no_counter_smaller() -> None:
    """Each had calls of tenants and tried replicas that no other knew."""
    labels, ended, shown = TenantLabels(TENANTS[:1], max_tenants=5), Figures(), Figures()
    for number in range(200):
        metrics = Metrics([MODEL], TenantLabels(TENANTS[:1], max_tenants=5))
        replica = ReplicaState("p", f"10.0.0.{number}:1", up=True, in_flight=0, breaker_open=False)
        metrics.watch_replicas(partial(list, [replica]))
        for tenant in ("acme", None, f"a-{number}", f"b-{number}"):
            metrics.record(finished(tenant=tenant))
        metrics.attempt("p", replica.replica, result="answered")
        worker = bounded(figures.of(metrics.registry), labels.label)
        ended, before = here(ended, [worker]), shown
        shown = merge([worker], ended)
        for tenant in ("acme", "a-0", "b-1", "other", "unknown"):
            assert requests(shown, tenant=tenant) >= (requests(before, tenant=tenant) if number else 0)
        assert requests(shown) == 4 * (number + 1)
        assert attempts(shown) == 1
        ended = grown((ended, worker))
    assert sum(len(family.samples) for family in shown.values()) < 500
    told = {dict(words)["tenant"] for _, words in shown["gateway_requests"].samples}
    assert told == {"acme", "a-0", "b-0", "a-1", "b-1", "other", "unknown"}


def attempts(found: Figures) -> float:
    return total(found, "gateway_upstream_attempts", "gateway_upstream_attempts_total")


def test_what_ended_workers_tried_is_shown_until_one_that_runs_says_what_there_is() -> None:
    ended = process({})
    ended["gateway_upstream_attempts"] = figures.Family(
        "counter", "Tries.", {("gateway_upstream_attempts_total", (("pool", "p"), ("replica", one))): 1 for one in "ab"}
    )
    assert attempts(here(ended, [])) == attempts(here(ended, [{}])) == 2
    assert attempts(here(ended, [{}, process({})])) == 0


@pytest.mark.parametrize(("write", "read"), [(generate_latest, parse), (openmetrics, parse_openmetrics)])
def test_what_is_shown_is_a_scrape_in_either_form(write: object, read: object) -> None:
    assert callable(write)
    assert callable(read)
    found = merge([process({"acme": 1}), process({"globex": 2})], grown([process({"initech": 3})]))
    families = {family.name: family for family in read(write(figures.registry_of(found)).decode())}
    assert sum(sample.value for sample in families["gateway_requests"].samples) == 6
    assert families["gateway_request_duration_seconds"].type == "histogram"


def test_for_every_gauge_somebody_has_thought_of_what_several_come_to() -> None:
    metrics = Metrics([MODEL], TenantLabels([], max_tenants=1))
    feed_everything(metrics)
    gauges = {name for name, family in figures.of(metrics.registry).items() if family.kind == "gauge"}
    assert gauges == GAUGES.keys() - {"gateway_workers"}
