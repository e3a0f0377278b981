"""Who is compared: each proxy's name, what it does beside proxying, and the command that runs it before an engine."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import envoy, nginx
from bench.calls import AUDIENCE, ISSUER, PLAN
from bench.processes import free_port
from bench.wording import MODEL

REFERENCE = "aiohttp"

Rules = Sequence[Mapping[str, Any]]

# Rules that are counted for every call and never refuse one.
_RULES: Rules = [
    {"name": "key-requests", "per": ["key"], "requests": 10**9, "window": "1m"},
    {"name": "key-tokens", "per": ["key", "model"], "tokens": 10**12, "window": "1m"},
    {"name": "tenant-month", "per": ["tenant"], "tokens": 10**12, "window": "month"},
]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a proxy runs: a folder for its files, the ports of its engine and its store, its clients' key set."""

    folder: Path
    engine: int
    store: int
    jwks: str


@dataclass(frozen=True, slots=True)
class Proxy:
    """`command(site, port)` is what runs it; None where its program is not on this machine."""

    name: str
    does: str
    command: Callable[[Site, int], list[str] | None]


def known() -> list[Proxy]:
    """Return every proxy that can be compared; the first is the reference."""
    return [
        Proxy(REFERENCE, "nothing (web.Application, ClientSession, uvloop)", _plain),
        Proxy("gateway", "all policies; limits in Redis", _gateway("gateway", store="redis")),
        Proxy("gateway-memory", "all policies; limits in memory", _gateway("gateway-memory", store="memory")),
        Proxy("gateway-uncompiled", "as gateway, from its source", _uncompiled("gateway-uncompiled")),
        Proxy("nginx", "nothing", _nginx),
        Proxy("envoy", "nothing", lambda site, port: _envoy(site, port, jwks=None)),
        Proxy("envoy-policies", "token, one local limit", lambda site, port: _envoy(site, port, jwks=site.jwks)),
    ]


def limited(name: str, *, store: str, rules: bool) -> Proxy:
    """Return one of several gateways that differ in where they count, and whether there is anything to count."""
    does = f"limits in {store}" if rules else "no rules"
    return Proxy(name, does, _gateway(name, store=store, rules=_RULES if rules else []))


def fetching(name: str, publish: Callable[[str], str], **issuer: Any) -> Proxy:
    """Return a gateway that fetches its key set: `publish` takes the set, and gives its URL."""

    def command(site: Site, port: int) -> list[str]:
        limits = {"store": "memory", "plans": {PLAN: list(_RULES)}}
        config = _config(site.engine, port, limits=limits, jwks=publish(site.jwks), **issuer)
        return _serving(name, config, site.folder)

    return Proxy(name, "limits in memory; key set by URL", command)


def _plain(site: Site, port: int) -> list[str]:
    return [sys.executable, "-m", "bench.plain_proxy", str(port), f"http://127.0.0.1:{site.engine}"]


def _gateway(name: str, *, store: str, rules: Rules = _RULES) -> Callable[[Site, int], list[str]]:
    """Everything on; access log lines go to standard output, which is a file here."""

    def command(site: Site, port: int) -> list[str]:
        jwks = site.folder / "jwks.json"
        jwks.write_text(site.jwks)
        url = f"redis://127.0.0.1:{site.store}/0" if store == "redis" else store
        limits = {"store": url, "plans": {PLAN: list(rules)}}
        return _serving(name, _config(site.engine, port, limits=limits, jwks=str(jwks)), site.folder)

    return command


def _uncompiled(name: str) -> Callable[[Site, int], list[str]]:
    """Run in the checkout, and without the variables by which `make bench` has the compiled package imported."""
    command = _gateway(name, store="redis")
    return lambda site, port: ["env", "-u", "PYTHONPATH", "-u", "PYTHONSAFEPATH", *command(site, port)]


def _serving(name: str, config: Mapping[str, Any], folder: Path) -> list[str]:
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return [sys.executable, "-m", "gateway", "serve", "--config", str(path)]


def _config(engine: int, port: int, *, limits: Mapping[str, Any], jwks: str, **more: Any) -> dict[str, Any]:
    issuer = {"issuer": ISSUER, "jwks": jwks, "algorithms": ["RS256"], "audience": AUDIENCE, **more}
    return {
        "server": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
        "auth": {"issuers": [issuer]},
        "limits": limits,
        "models": {MODEL: {"pool": "engines"}},
        "pools": {"engines": {"engine": "vllm", "replicas": [f"http://127.0.0.1:{engine}"]}},
    }


def _nginx(site: Site, port: int) -> list[str] | None:
    binary = shutil.which("nginx")
    return None if binary is None else nginx.command(binary, site.folder, port=port, engine=site.engine)


def _envoy(site: Site, port: int, *, jwks: str | None) -> list[str] | None:
    binary = shutil.which("envoy")
    if binary is None:
        return None
    return envoy.command(binary, site.folder, port=port, engine=site.engine, jwks=jwks)
