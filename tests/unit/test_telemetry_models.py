"""Labels of models that come and go with the config, and what was counted under them."""

from prometheus_client import generate_latest

from gateway.telemetry.metrics import Metrics
from gateway.telemetry.models import FORMER, ModelNames
from gateway.telemetry.tenants import TenantLabels
from tests.unit.finished_calls import MODEL, finished


def test_the_last_that_left_keep_their_label_and_those_in_use() -> None:
    names = ModelNames(["first", "second"])
    assert names.configure(["new"], busy=()) == set()
    assert set(names) == {"first", "second", "new"}
    many = [f"m-{number}" for number in range(FORMER)]
    assert names.configure(many, busy=["second"]) == set()  # 3 have left, of the last FORMER
    assert names.configure(["new"], busy=["second"]) == {"first"}
    assert names.configure(["new"], busy=()) == {"second"}
    assert set(names) == {*many, "new"}


def test_a_model_that_comes_back_is_none_that_left() -> None:
    names = ModelNames(["back"])
    for number in range(3):
        names.configure([f"m-{number}-{one}" for one in range(FORMER)], busy=())
        names.configure(["back"], busy=())
        assert names["back"] == "back"
    assert len(names) == FORMER + 1


def test_nothing_of_a_model_without_a_label_stays_and_calls_to_it_are_unknown() -> None:
    metrics = Metrics([MODEL], TenantLabels([], max_tenants=200))
    metrics.record(finished(usage_missing="not_reported", broken_by="reset"))
    ended, closed = metrics.call_started(MODEL), metrics.stream_opened(MODEL)
    many = [f"m-{number}" for number in range(FORMER + 1)]
    metrics.configure(many, [], max_tenants=200)
    metrics.configure([], [], max_tenants=200)
    assert MODEL.encode() in generate_latest(metrics.registry)  # one is under way
    closed()
    ended()
    metrics.configure([], [], max_tenants=200)
    assert MODEL.encode() not in generate_latest(metrics.registry)
    metrics.record(finished())
    assert MODEL.encode() not in generate_latest(metrics.registry)
    assert b'model="unknown"' in generate_latest(metrics.registry)


def test_a_call_leaves_where_it_was_counted_whatever_becomes_of_its_models_label_meanwhile() -> None:
    metrics = Metrics([MODEL], TenantLabels([], max_tenants=200))
    begins = (metrics.call_started, metrics.stream_opened)

    def reload(*models: str) -> None:
        metrics.configure(models, [], max_tenants=200)

    def gauges() -> set[float]:
        names = ("gateway_requests_in_flight", "gateway_streams_open")
        return {one.value for family in metrics.registry.collect() if family.name in names for one in family.samples}

    reload(*[f"m-{number}" for number in range(FORMER + 1)])
    reload()
    ends = [begin(MODEL) for begin in begins]  # its label has gone: it read a long body all the while
    reload(MODEL)
    ends += [begin(MODEL) for begin in begins]
    assert gauges() == {1}
    for end in ends:
        end()
    assert gauges() == {0}
