"""Who is compared: each proxy's name, what it does beside proxying, and the command that runs it before an engine."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import envoy, nginx
from bench.calls import AUDIENCE, ISSUER, PLAN
from bench.processes import free_port
from bench.wording import MODEL

REFERENCE = "aiohttp"

# Rules that are counted for every call and never refuse one.
_RULES = [
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
        Proxy("gateway", "all policies; limits in Redis", lambda site, port: _gateway(site, port, "redis")),
        Proxy("gateway-memory", "all policies; limits in memory", lambda site, port: _gateway(site, port, "memory")),
        Proxy("nginx", "nothing", _nginx),
        Proxy("envoy", "nothing", lambda site, port: _envoy(site, port, jwks=None)),
        Proxy("envoy-policies", "token, one local limit", lambda site, port: _envoy(site, port, jwks=site.jwks)),
    ]


def _plain(site: Site, port: int) -> list[str]:
    return [sys.executable, "-m", "bench.plain_proxy", str(port), f"http://127.0.0.1:{site.engine}"]


def _gateway(site: Site, port: int, store: str) -> list[str]:
    """Everything on; access log lines go to standard output, which is a file here."""
    jwks = site.folder / "jwks.json"
    jwks.write_text(site.jwks)
    path = site.folder / f"gateway-{store}.yaml"
    url = f"redis://127.0.0.1:{site.store}/0" if store == "redis" else store
    path.write_text(json.dumps(_config(site.engine, port, store=url, jwks=jwks)))  # JSON is YAML
    return [sys.executable, "-m", "gateway", "serve", "--config", str(path)]


def _config(engine: int, port: int, *, store: str, jwks: Path) -> dict[str, Any]:
    issuer = {"issuer": ISSUER, "jwks": str(jwks), "algorithms": ["RS256"], "audience": AUDIENCE}
    return {
        "server": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
        "auth": {"issuers": [issuer]},
        "limits": {"store": store, "plans": {PLAN: _RULES}},
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
