"""Pools as several workers say that they are, as those of one gateway."""

import json
from typing import Any

from gateway.workers.asked import Asked
from gateway.workers.pools import of_all

A, B = "http://a:1", "http://b:1"


def replica(url: str, state: str = "up", **more: Any) -> dict[str, Any]:
    return {
        "replica": url.removeprefix("http://"),
        "url": url,
        "state": state,
        "up": state != "down",
        "drained": state == "drained",
        "breaker_open": state == "breaker_open",
        "rests_for_s": 0.0,
        "warms_up_for_s": 0.0,
        "in_flight": 1,
        "max_in_flight": 8,
        "weight": 1.0,
        "full_weight": 1.0,
        "tokens_per_second": None,
        "load": None,
        "from": "config",
        **more,
    }


def pool(*replicas: dict[str, Any], name: str = "main", **more: Any) -> dict[str, Any]:
    queue = {"waiting": {"high": 1, "normal": 0, "low": 2}, "max_waiting": 10, "max_wait_s": 5.0}
    return {
        "name": name,
        "engine": "vllm",
        "in_flight": 2,
        "queue": queue,
        "retries_left": 1.5,
        "replicas": list(replicas),
        "leaving": [],
        **more,
    }


def listed(*pools: dict[str, Any], current: bool = True) -> dict[str, Any]:
    return {"object": "list", "current": current, "orders": [{"pool": "main"}], "data": list(pools)}


def test_what_each_has_is_added_up_and_a_replica_is_as_who_has_most_against_it_says() -> None:
    load = {"running": 3, "waiting": 0, "cache_used": None}
    told = {
        0: listed(
            pool(replica(A, "breaker_open", load=load | {"age_s": 0.9}, tokens_per_second=100), replica(B)),
            pool(name="only-here", queue=None),
        ),
        2: listed(
            pool(
                replica(A, load=load | {"age_s": 0.1}, tokens_per_second=300, weight=0.5),
                replica(B, "down", max_in_flight=None),
                leaving=[{"replica": "c:1", "url": "http://c:1", "in_flight": 4}],
            ),
            current=False,
        ),
    }
    page = json.loads(json.dumps(of_all(Asked(told, silent=[1]))))
    assert (page["object"], page["current"], page["silent_workers"]) == ("list", False, [1])
    assert page["orders"] == [{"pool": "main"}]
    main, only_here = page["data"]
    assert only_here["queue"] is None
    assert (main["in_flight"], main["retries_left"]) == (4, 3.0)
    assert main["queue"] == {"waiting": {"high": 2, "normal": 0, "low": 4}, "max_waiting": 20, "max_wait_s": 5.0}
    assert [one["worker"] for one in main["workers"]] == [0, 2]
    assert main["leaving"] == [{"replica": "c:1", "url": "http://c:1", "in_flight": 4}]
    a, b = main["replicas"]
    assert (a["state"], a["breaker_open"], a["in_flight"], a["max_in_flight"]) == ("breaker_open", True, 2, 16)
    assert (a["weight"], a["tokens_per_second"], a["load"]["age_s"]) == (0.75, 200, 0.1)
    assert [(one["worker"], one["state"], one["breaker_open"]) for one in a["workers"]] == [
        (0, "breaker_open", True),
        (2, "up", False),
    ]
    assert (b["state"], b["up"], b["max_in_flight"]) == ("down", False, None)


def test_one_pool_is_shown_as_a_pool_and_nobody_as_nothing() -> None:
    one = {"object": "pool", "current": True, "orders": []} | pool(replica(A))
    page = of_all(Asked({0: one, 1: one}))
    assert (page["object"], page["name"], page["in_flight"]) == ("pool", "main", 4)
    assert (page["current"], page["silent_workers"], page["orders"]) == (True, [], [])
    assert of_all(Asked(silent=[0])) == {
        "object": "list",
        "current": False,
        "silent_workers": [0],
        "orders": [],
        "data": [],
    }
