import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import SystemClock
from gateway.config import Health, ModelEntry, PoolEntry, ReplicaEntry
from gateway.errors import ModelNotFound, NoReplicaAvailable
from gateway.identity.principal import Principal
from gateway.routing.catalog import Catalog
from gateway.routing.health import Streak
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica


def pool_of(*weights: float, **entry: object) -> Pool:
    replicas = [{"url": f"http://10.0.0.{i}:8000", "weight": weight} for i, weight in enumerate(weights)]
    return Pool("p", PoolEntry.model_validate({"replicas": replicas, **entry}), random.Random(1), SystemClock())


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_the_choice_is_up_untried_and_the_least_loaded(states: list[tuple[int, bool, bool]]) -> None:
    pool = pool_of(*[1.0] * len(states))
    for replica, (in_flight, up, _) in zip(pool.replicas, states, strict=True):
        replica.in_flight, replica.up = in_flight, up
    tried = [replica for replica, (_, _, was_tried) in zip(pool.replicas, states, strict=True) if was_tried]
    eligible = [replica for replica in pool.replicas if replica.up and replica not in tried]
    with suppress(NoReplicaAvailable), pool.lend(tried=tried) as chosen:
        assert chosen in eligible
        assert chosen.in_flight - 1 == min(replica.in_flight - (replica is chosen) for replica in eligible)
        return
    assert not eligible


def test_a_loan_is_given_back_whatever_happens() -> None:
    pool = pool_of(1)
    with suppress(ZeroDivisionError), pool.lend() as replica:
        assert replica.in_flight == 1
        raise ZeroDivisionError
    assert pool.replicas[0].in_flight == 0


def test_a_pool_that_is_down_says_so() -> None:
    pool = pool_of(1)
    pool.replicas[0].up = False
    with pytest.raises(NoReplicaAvailable) as refused:
        pool.lend()
    assert refused.value.headers["Retry-After"] == "5"


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "base_path", "tls"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, "10.0.0.1:8000", "", False),
        ("https://llm.example.com/base/", "llm.example.com", 443, "llm.example.com:443", "/base", True),
        ("http://[fd00::1]:8000", "fd00::1", 8000, "[fd00::1]:8000", "", False),
    ],
)
def test_a_replicas_url(url: str, host: str, port: int, authority: str, base_path: str, tls: bool) -> None:
    entry = PoolEntry.model_validate({"replicas": [url]})
    replica = Replica(entry.replicas[0], entry)
    assert (replica.host, replica.port, replica.authority) == (host, port, authority)
    assert (replica.base_path, replica.tls) == (base_path, tls)


@pytest.mark.parametrize("url", ["http://user:pass@h", "http://h?key=1", "h:80", "ftp://h", "http://h/#x"])
def test_a_replicas_url_holds_no_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        ReplicaEntry.model_validate(url)


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, f"a.{'b' * 64}.c"])
def test_a_replica_has_a_name_that_can_be_looked_up(host: str) -> None:
    """One that cannot be encoded is no OSError: it would end calls and probes as a defect of ours."""
    for entry in ({"url": f"http://{host}:8000"}, {"url": "http://10.0.0.1", "server_name": host}):
        with pytest.raises(ValueError, match=r"1 to 63 characters|should match pattern"):
            ReplicaEntry.model_validate(entry)
    assert ReplicaEntry(url=f"http://{'a' * 63}.b.:8000", server_name="b.").url


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.booleans(), max_size=40))
def test_a_replica_changes_state_only_after_a_streak(down_after: int, up_after: int, results: list[bool]) -> None:
    health = Health(unhealthy_after=down_after, healthy_after=up_after)
    streak, up, run = Streak(up=True), True, 0
    for good in results:
        run = run + 1 if good != up else 0
        if run == (up_after if good else down_after):
            up, run = good, 0
        assert streak.note(health, good=good) is up


def catalog() -> Catalog:
    entries = {
        "acme/small": {"pool": "p", "aliases": ["small"], "served_name": "engine-small"},
        "acme/big": {"pool": "p"},
    }
    models = {name: ModelEntry.model_validate(entry) for name, entry in entries.items()}
    return Catalog(models, {"p": pool_of(1)}, random.Random(1))


def test_names_and_aliases_mean_models() -> None:
    anyone = Principal("acme", "k")
    model = catalog().resolve("small", anyone)
    assert model.name == catalog().resolve("acme/small", anyone).name
    assert (model.name, model.name_at(model.pool.replicas[0])) == ("acme/small", "engine-small")
    big = catalog().resolve("acme/big", anyone)
    assert big.name_at(big.pool.replicas[0]) == "acme/big"


@pytest.mark.parametrize("name", ["nope", "SMALL", " small", "small\u0000", "x" * 5000])
def test_unknown_and_forbidden_models_look_the_same(name: str) -> None:
    with pytest.raises(ModelNotFound) as unknown:
        catalog().resolve(name, Principal("acme", "k"))
    assert len(unknown.value.message) < 250
    for forbidden in ("acme/small", "small"):
        with pytest.raises(ModelNotFound) as refused:
            catalog().resolve(forbidden, Principal("acme", "k", models=("acme/big",)))
        assert refused.value.message == unknown.value.message.replace(repr(name), repr(forbidden)) or len(name) > 100


def test_permissions_are_globs_that_cross_slashes_and_an_empty_list_permits_none() -> None:
    shown = [m.name for m in catalog().permitted(Principal("acme", "k", models=("acme*",)))]
    assert shown == ["acme/small", "acme/big"]
    assert [m.name for m in catalog().permitted(Principal("acme", "k", models=("*/big",)))] == ["acme/big"]
    assert list(catalog().permitted(Principal("acme", "k", models=()))) == []
