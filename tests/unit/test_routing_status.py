"""What operators are shown of a pool in this process."""

import random
from typing import Any

from gateway.config import PoolEntry
from gateway.routing.engine_load import EngineLoad
from gateway.routing.orders.orders import Orders
from gateway.routing.pool import Pool
from gateway.routing.status import status_of
from tests.documents import ROOT
from tests.identity_provider import SetClock

WARM, REST, LOADED, ILL, OUT = (f"http://{name}:1" for name in ("warm", "rest", "loaded", "ill", "out"))


def rows(pool: Pool) -> dict[str, Any]:
    return {row["url"]: row for row in status_of(pool)["replicas"]}


def test_what_keeps_calls_from_a_replica_is_told_and_for_how_long() -> None:
    clock = SetClock()
    entry = {
        "replicas": [{"url": WARM, "weight": 2}, REST, {"url": LOADED, "max_in_flight": 3}, ILL, OUT],
        "slow_start": "10s",
        "queue": {"max_waiting": 7, "max_wait": "2s"},
        "retry_budget": {"share": 0, "per_second": 2},
    }
    pool = Pool("main", PoolEntry.model_validate(entry), random.Random(1), clock)
    warm, rest, loaded, ill, _ = pool.replicas
    pool.order(Orders(drained=frozenset({OUT})))
    pool.warm_up(warm)
    pool.rest(rest, 30)
    ill.breaker.trip(clock.monotonic())
    loaded.told(EngineLoad(3, 4, 0.5), now=clock.monotonic())
    with pool.loan([loaded], ()) as _:
        clock.advance(2.5)
        for _ in range(19):
            assert pool.retries.take(clock.monotonic())
        status = status_of(pool)
    shown = {row["url"]: row for row in status["replicas"]}
    assert {url: row["state"] for url, row in shown.items()} == {
        WARM: "warming_up",
        REST: "resting",
        LOADED: "up",
        ILL: "breaker_open",
        OUT: "drained",
    }
    # Of its time, not of the last call that looked at it.
    assert {"weight": 0.5, "full_weight": 2.0, "warms_up_for_s": 7.5, "max_in_flight": None}.items() <= shown[
        WARM
    ].items()
    assert shown[REST]["rests_for_s"] == 27.5
    assert shown[LOADED]["load"] == {"running": 3, "waiting": 4, "cache_used": 0.5, "age_s": 2.5}
    assert (shown[LOADED]["in_flight"], shown[LOADED]["max_in_flight"], shown[ILL]["load"]) == (1, 3, None)
    assert (status["in_flight"], status["retries_left"]) == (1, 1.0)
    documented = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("### Pools as JSON")[2]
    for names in (status.keys() - {"name", "engine"}, shown[LOADED].keys() - {"replica", "url"}):
        assert not [name for name in names if f"`{name}`" not in documented.partition("\n## ")[0]]
    assert status["queue"] == {
        "waiting": {"high": 0, "normal": 0, "low": 0},
        "max_waiting": 7,
        "max_wait_s": 2.0,
    }
    clock.advance(7.6)
    assert (rows(pool)[WARM]["state"], rows(pool)[WARM]["weight"]) == ("up", 2.0)


def test_where_no_call_can_have_to_wait_there_is_no_queue() -> None:
    pool = Pool("main", PoolEntry.model_validate({"replicas": [WARM]}), random.Random(1), SetClock())
    assert status_of(pool)["queue"] is None
