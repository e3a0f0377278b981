"""What operators are told first: numbers of a scrape, what came of late, and what is amiss."""

from collections import Counter
from typing import Any

import pytest

from gateway.admin import numbers
from gateway.admin.recent import LATELY_S, Recent
from gateway.admin.tables import tables
from gateway.admin.trouble import trouble
from gateway.telemetry import figures
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tenants import TenantLabels
from tests.unit.finished_calls import MODEL, finished
from tests.unit.test_docs_metrics import feed_everything
from tests.unit.test_workers_pools import A, B, pool, replica

# Of a supervisor only.
OF_WORKERS = {"gateway_workers", "gateway_worker_restarts_total"}
WELL: dict[str, Any] = {
    "checks": {"draining": "ok", "pools": "ok"},
    "silent_workers": [],
    "defects": 0,
    "workers": None,
    "calls": {"in_flight": 0, "streams": 0, "waiting": 0},
    "configs": [{"file": "/c", "sha256": "a", "loaded_at": "", "last_reload": None}],
    "pools": [pool(replica(A))],
    "orders": [],
    "amiss": {"since": None, "data": []},
    "issuers": [],
    "store": {
        "failures": {},
        "settings": [{"settings": "orders", "in_force": 1, "left_out": 0, "age_s": 0.5}],
        "journal_pending": 0,
        "settlements_dropped": 0,
    },
}
REFUSED = {"result": "failed", "at": "then", "because": "SIGHUP", "problems": ["a: b", "c: d"]}


def test_what_is_looked_at_is_there_and_what_ended_well_is_no_trouble() -> None:
    metrics = Metrics([MODEL], TenantLabels((), max_tenants=5))
    feed_everything(metrics)
    metrics.record(finished(status=429, ending="refused"))
    metrics.limit_decided("key-requests", "refused")
    found = figures.of(metrics.registry.restricted_registry(numbers.NAMES))
    shown = {sample for family in found.values() for sample, _ in family.samples}
    assert shown == {*numbers.NAMES} - OF_WORKERS
    counted = numbers.amiss(found)
    assert {by for by, _ in counted} == {"status", "code", "limit", "token", "queue", "retry", "broken"}
    assert not [what for by, what in counted if "ok" in what.split() or "admitted" in what.split()]
    assert numbers.workers(found) is None
    assert [row["issuer"] for row in numbers.issuers(found)]
    assert {row["settings"] for row in numbers.store(found)["settings"]}


def test_what_came_of_late_is_known_from_the_second_look_on() -> None:
    recent, old, new = Recent(), Counter({("status", "429"): 5}), Counter({("status", "429"): 7, ("token", "key"): 1})
    assert recent.since(100.0, old) is None
    recent.note(100.0, old)
    assert recent.since(105.0, new) == (100.0, Counter({("status", "429"): 2, ("token", "key"): 1}))
    recent.note(105.0, new)  # too soon after the last to be kept
    recent.note(200.0, new)
    assert recent.since(100.0 + LATELY_S, new) == (100.0, new - old)
    assert recent.since(101.0 + LATELY_S, new) == (200.0, Counter())
    assert recent.since(201.0 + LATELY_S, new) is None
    recent.note(600.0, new)
    recent.note(50.0, old)  # the clock was set
    assert recent.since(60.0, new) == (50.0, new - old)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"checks": {"draining": "ok", "pools": "no replica"}}, "Not ready: pools: no replica."),
        ({"silent_workers": [1, 3]}, "Workers that do not answer, and of which nothing is shown: 1, 3."),
        ({"configs": [{"sha256": "a", "last_reload": None}, {"sha256": "b", "last_reload": None}]}, "Workers have"),
        ({"configs": [{"sha256": "a", "last_reload": REFUSED}] * 2}, "The config was read again at then and cannot"),
        ({"defects": 2}, "Defects of the gateway's own: 2; the log has each."),
        ({"pools": [pool()]}, "Pool main has no replica."),
        ({"pools": [pool(replica(A), replica(B, "down"))]}, "Pool main has replicas that are not up: 1 down of 2."),
        ({"pools": [pool(replica(A), retries_left=0.5)]}, "Pool main has no retries left."),
        (
            {"pools": [pool(replica(A), queue={"waiting": {"high": 2, "low": 4}, "max_waiting": 10})]},
            "Pool main: 6 of 10 places to wait are taken.",
        ),
        ({"store": WELL["store"] | {"settings": [{"settings": "orders", "left_out": 0, "age_s": 9.1}]}}, "The limit"),
        ({"store": WELL["store"] | {"settings": [{"settings": "orders", "left_out": 2, "age_s": 0}]}}, "Of the orders"),
        ({"store": WELL["store"] | {"journal_pending": 3}}, "3 settlements wait in the journal"),
        ({"store": WELL["store"] | {"settlements_dropped": 3}}, "3 settlements were dropped"),
    ],
)
def test_each_trouble_is_one_sentence(more: dict[str, Any], said: str | None) -> None:
    found = trouble(WELL | more)
    assert len(found) == (said is not None)
    assert said is None or found[0].startswith(said)


def test_what_is_broken_comes_first_what_workers_find_is_told_and_a_huge_pool_is_cut() -> None:
    each = [{"worker": 0, "state": "down"}, {"worker": 1, "state": "up"}]
    many = [replica(f"http://{number}:1") for number in range(300)]
    told = tables(WELL | {"pools": [pool(*many, replica(B, "down", workers=each))]})
    (shown,) = [table for table in told if table.title == "Pool main"]
    assert shown.rows[0][:2] == ("b:1", "down (worker 1 up)")
    assert shown.commands[0] == "gateway replica drain --config /c --pool main --url http://b:1"
    assert len(shown.rows) == 250
    assert "51 replicas more are in /admin/pools" in shown.said
    (shown,) = [table for table in tables(WELL | {"configs": [], "pools": [pool(replica(A))]}) if table.commands]
    assert shown.commands == [""]
