"""Every key of the config is taken on by what goes by it when it is read again, or has the whole file refused."""

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app import Gateway
from gateway.config import Config, file
from gateway.config.changes import AT_START
from gateway.identity import development
from tests.config_keys import KEYS
from tests.doors import OpenDoor
from tests.reloading import read_again

# Digests of nothing.
SHA = ["0" * 64, "1" * 64, "2" * 64, "3" * 64]


def _configs(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two configs that differ in every key that can be taken on."""
    keys = [directory / "keys-0.yaml", directory / "keys-1.yaml"]
    for path, sha in zip(keys, SHA[2:], strict=True):
        path.write_text(yaml.safe_dump([{"key": "f", "tenant": "t", "sha256": sha}]))
    other = directory / "other.pem"
    development.load_or_create(other)
    before = {
        "auth": {
            "api_keys": [{"key": "a", "tenant": "t", "sha256": SHA[0]}],
            "api_keys_file": str(keys[0]),
            "issuers": [{"issuer": "idp", "jwks": "nowhere.json"}],
            "tenants": {"t": {"models": ["a*"]}},
        },
        "limits": {"plans": {"standard": [{"name": "calls", "requests": 10, "window": "1m"}], "large": []}},
        "models": {"m": {"pool": "main"}},
        "pools": {"main": {"replicas": ["http://127.0.0.1:1"], "api_key": "one"}},
    }
    after = {
        "server": {
            "max_body": "1MiB",
            "body_budget": "2MiB",
            "drain_timeout": "3s",
            "drain_delay": "5ms",
            "write_timeout": "4s",
            "watch_config": "60s",
        },
        "auth": {
            "development_key": str(other),
            "api_keys": [{"key": "a", "tenant": "t", "sha256": SHA[1]}],
            "api_keys_file": str(keys[1]),
            "issuers": [{"issuer": "idp", "jwks": "nowhere.json", "leeway": "1s"}],
            "tenants": {"t": {"models": ["b*"]}},
        },
        "limits": {
            "plans": {"standard": [{"name": "calls", "requests": 20, "window": "1m"}], "large": []},
            "default_plan": "large",
            "priorities": {"large": "high"},
            "on_store_failure": "deny",
            "expected_processes": 3,
            "tenants": {"t": {"plan": "standard"}},
        },
        "models": {"m": {"pool": "main", "aliases": ["tiny"], "timeouts": {"idle": "9s"}}},
        "pools": {
            "main": {
                "replicas": [
                    {
                        "url": "http://127.0.0.1:2",
                        "weight": 2,
                        "max_in_flight": 7,
                        "served_name": "x",
                        "server_name": "y",
                    }
                ],
                "discovery": {"file": {"path": str(directory / "replicas.yaml")}},
                "api_key": "two",
                "engine": "sglang",
                "balance": "prefix_affinity",
                "load": {"path": "/load", "interval": "3s"},
                "slow_start": "4s",
                "max_in_flight": 6,
                "queue": {"max_waiting": 5, "max_wait": "2s"},
                "attempts": 7,
                "timeouts": {"connect": "7s", "first_byte": "8s", "idle": "10s", "answer": "11s", "total": "12s"},
                "keep_alive_comments": "13s",
                "health": {"path": "/h", "interval": "14s", "unhealthy_after": 5, "healthy_after": 6},
                "breaker": {"failures": 8, "window": "15s", "open_for": "16s"},
                "retry_budget": {"share": 0.5, "per_second": 5},
            }
        },
        "requests": {"max_depth": 9, "head_timeout": "17s", "body_timeout": "18s", "blocked_fields": ["x"]},
        "metrics": {"max_tenants": 3},
        "logging": {"format": "text", "level": "warning"},
    }
    return before, after


def _replica(gateway: Gateway) -> Any:
    return gateway._pools["main"].replicas[0]


def _model(gateway: Gateway) -> Any:
    return gateway._pipeline.serving.catalog._models["m"]


def _limits(gateway: Gateway) -> Any:
    """Return the limits that everybody goes by who has them."""
    everybody = (gateway._admission, gateway._overrides, gateway._limit_pages._desk, gateway._admission.rulebook)
    held: list[Any] = [one._limits for one in everybody]
    assert all(one is gateway._limit_pages._settings.limits for one in held)
    return held[0]


def _entries(gateway: Gateway) -> tuple[Any, ...]:
    return tuple(judges.entry for judges in gateway._authenticator._trust.judges)


def _main(settings: Config) -> Any:
    return settings.pools["main"]


def _digests(settings: Config) -> set[bytes]:
    return {bytes.fromhex(one.sha256) for one in settings.auth.all_api_keys}


# What the part that goes by a key has, and what the config has. A key that ends in a dot stands for all below it: the
# part has the very value of the config with all its keys.
Held = tuple[Callable[[Gateway], Any], Callable[[Config], Any]]
HELD: dict[str, Held] = {
    "server.max_body": (lambda g: g._pipeline.serving.max_body, lambda c: c.server.max_body),
    "server.body_budget": (lambda g: g._pipeline._room._free, lambda c: c.server.body_budget),
    "server.drain_timeout": (lambda g: g._settings.server.drain_timeout, lambda c: c.server.drain_timeout),
    "server.drain_delay": (lambda g: g._settings.server.drain_delay, lambda c: c.server.drain_delay),
    "server.write_timeout": (lambda g: g._clients._write_timeout_s, lambda c: c.server.write_timeout),
    "server.watch_config": (lambda g: g._reload._settings.server.watch_config, lambda c: c.server.watch_config),
    "auth.issuers.": (lambda g: _entries(g)[:1], lambda c: c.auth.issuers),
    "auth.development_key": (lambda g: _entries(g)[-1].jwks, lambda c: c.auth.development_key),
    "auth.api_keys.": (lambda g: set(g._authenticator._trust._api_keys._known), _digests),
    "auth.api_keys_file": (lambda g: set(g._authenticator._trust._api_keys._known), _digests),
    "auth.tenants.": (lambda g: g._authenticator._trust._permissions._tenants, lambda c: c.auth.tenants),
    "limits.priorities.": (lambda g: _limits(g).priorities, lambda c: c.limits.priorities),
    "limits.default_plan": (lambda g: _limits(g).default_plan, lambda c: c.limits.default_plan),
    "limits.on_store_failure": (lambda g: _limits(g).on_store_failure, lambda c: c.limits.on_store_failure),
    "limits.expected_processes": (lambda g: _limits(g).expected_processes, lambda c: c.limits.expected_processes),
    "limits.plans.": (lambda g: _limits(g).plans, lambda c: c.limits.plans),
    "limits.tenants.": (lambda g: g._admission.rulebook._tenants, lambda c: c.limits.tenants),
    "models.": (lambda g: _model(g).entry, lambda c: c.models["m"]),
    "models.*.timeouts.": (
        lambda g: _model(g).timeouts,
        lambda c: _main(c).timeouts.changed(c.models["m"].timeouts),
    ),
    "pools.*.replicas[].url": (lambda g: _replica(g).url, lambda c: _main(c).replicas[0].url),
    "pools.*.replicas[].weight": (lambda g: _replica(g).weight, lambda c: _main(c).replicas[0].weight),
    "pools.*.replicas[].served_name": (lambda g: _replica(g).served_name, lambda c: _main(c).replicas[0].served_name),
    "pools.*.replicas[].server_name": (
        lambda g: _replica(g).server_name,
        lambda c: _main(c).replicas[0].server_name or "127.0.0.1",
    ),
    "pools.*.discovery.": (
        lambda g: next((one.entry for one in g._discovery._followed.values()), None),
        lambda c: _main(c).discovery,
    ),
    "pools.*.api_key": (
        lambda g: _replica(g).authorization,
        lambda c: f"Bearer {_main(c).api_key.get_secret_value()}",
    ),
    "pools.*.engine": (lambda g: g._pools["main"].engine, lambda c: _main(c).engine),
    "pools.*.balance": (lambda g: g._pools["main"].by_prefix, lambda c: _main(c).balance == "prefix_affinity"),
    "pools.*.load.": (lambda g: g._pools["main"].load, lambda c: _main(c).load),
    "pools.*.max_in_flight": (lambda g: g._pools["main"]._entry.max_in_flight, lambda c: _main(c).max_in_flight),
    "pools.*.replicas[].max_in_flight": (
        lambda g: _replica(g).most,
        lambda c: _main(c).replicas[0].max_in_flight or math.inf,
    ),
    "pools.*.queue.": (lambda g: getattr(g._pools["main"].room, "_entry", None), lambda c: _main(c).queue),
    "pools.*.slow_start": (lambda g: g._pools["main"].slow_start, lambda c: _main(c).slow_start),
    "pools.*.attempts": (lambda g: g._pools["main"].attempts, lambda c: _main(c).attempts),
    "pools.*.timeouts.": (lambda g: g._pools["main"].timeouts, lambda c: _main(c).timeouts),
    "pools.*.keep_alive_comments": (
        lambda g: g._pools["main"].keep_alive_comments,
        lambda c: _main(c).keep_alive_comments,
    ),
    "pools.*.health.": (lambda g: g._pools["main"].health, lambda c: _main(c).health),
    "pools.*.breaker.": (lambda g: _replica(g).breaker._entry, lambda c: _main(c).breaker),
    "pools.*.retry_budget.": (lambda g: g._pools["main"].retries._budget, lambda c: _main(c).retry_budget),
    "requests.max_depth": (lambda g: g._pipeline.serving.requests.max_depth, lambda c: c.requests.max_depth),
    "requests.head_timeout": (lambda g: g._clients._head_timeout_s, lambda c: c.requests.head_timeout),
    "requests.body_timeout": (lambda g: g._pipeline.serving.requests.body_timeout, lambda c: c.requests.body_timeout),
    "requests.blocked_fields": (
        lambda g: g._pipeline.serving.requests.blocked_fields,
        lambda c: c.requests.blocked_fields,
    ),
    "metrics.max_tenants": (lambda g: g._metrics._tenants._max_tenants, lambda c: c.metrics.max_tenants),
    "logging.format": (lambda g: g._pipeline._access_log._is_text, lambda c: c.logging.format == "text"),
    "logging.level": (
        lambda _g: logging.getLogger("gateway").level,
        lambda c: getattr(logging, c.logging.level.upper()),
    ),
}


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Leave logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    handlers, level = list(root.handlers), ours.level
    ours.setLevel("INFO")
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


def _leaves() -> list[str]:
    """Return the keys that have none below them."""
    return [key for key in KEYS if not any(other.startswith((f"{key}.", f"{key}[")) for other in KEYS)]


def _below(key: str, top: str) -> bool:
    return key == top or key.startswith((f"{top}.", f"{top}["))


def test_each_key_is_taken_on_or_takes_a_restart() -> None:
    """A key that is new stands in neither list: say there what goes by it, and have that go by another."""
    for key in _leaves():
        at_start = [top for top in AT_START if _below(key, top)]
        held = [top for top in HELD if key == top or (top.endswith(".") and _below(key, top.removesuffix(".")))]
        assert bool(at_start) != bool(held), key
    assert all(any(_below(key, top.removesuffix(".")) for key in KEYS) for top in HELD), "a key is none any more"


@pytest.mark.usefixtures("own_logs")
async def test_whoever_goes_by_a_key_goes_by_the_new_one(open_door: OpenDoor, tmp_path: Path) -> None:
    before, after = _configs(tmp_path)
    door = await open_door(**before)
    text = door.path.read_text()
    at_first = file.parse(text)
    had = {key: (held(door.gateway), of(at_first)) for key, (held, of) in HELD.items()}
    assert {key: held for key, (held, _) in had.items()} == {key: of for key, (_, of) in had.items()}
    base = yaml.safe_load(text)
    merged = after | {"server": base["server"] | after["server"], "admin": base["admin"]}
    door.path.write_text(yaml.safe_dump(merged))
    assert await read_again(door) == []
    now = file.parse(door.path.read_text())
    for key, (held, of) in HELD.items():
        assert held(door.gateway) == of(now), key
        assert of(now) != of(at_first), f"{key} is to differ"
