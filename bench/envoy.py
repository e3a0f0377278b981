"""Envoy as a plain proxy, or with token verification and a local rate limit in front: compiled code with policies."""

import json
from pathlib import Path
from typing import Any

from bench.calls import AUDIENCE, ISSUER

_TYPES = "type.googleapis.com/envoy.extensions.filters"
_MANY = 1_000_000


def command(binary: str, folder: Path, *, port: int, engine: int, jwks: str | None) -> list[str]:
    """Write Envoy's configuration into `folder`, with policies where a key set is given; return the command."""
    path = folder / f"envoy-{port}.json"
    path.write_text(
        json.dumps({"static_resources": {"listeners": [_listener(port, jwks)], "clusters": [_pool(engine)]}})
    )
    return [binary, "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]


def _listener(port: int, jwks: str | None) -> dict[str, Any]:
    policies = [] if jwks is None else [_token_verification(jwks), _rate_limit()]
    manager = {
        "codec_type": "HTTP1",
        "stat_prefix": "bench",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
        "http_filters": [*policies, _filter("envoy.filters.http.router", "http.router.v3.Router", {})],
    }
    kind = "network.http_connection_manager.v3.HttpConnectionManager"
    filters = [_filter("envoy.filters.network.http_connection_manager", kind, manager)]
    return {"address": _address(port), "filter_chains": [{"filters": filters}]}


def _route() -> dict[str, Any]:
    return {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}


def _token_verification(jwks: str) -> dict[str, Any]:
    issuer = {"issuer": ISSUER, "audiences": [AUDIENCE], "forward": True, "local_jwks": {"inline_string": jwks}}
    rules = [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}]
    config = {"providers": {"issuer": issuer}, "rules": rules}
    return _filter("envoy.filters.http.jwt_authn", "http.jwt_authn.v3.JwtAuthentication", config)


def _rate_limit() -> dict[str, Any]:
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    config = {
        "stat_prefix": "limit",
        "token_bucket": {"max_tokens": _MANY, "tokens_per_fill": _MANY, "fill_interval": "1s"},
        "filter_enabled": always,
        "filter_enforced": always,
    }
    return _filter("envoy.filters.http.local_ratelimit", "http.local_ratelimit.v3.LocalRateLimit", config)


def _pool(engine: int) -> dict[str, Any]:
    most = {"max_connections": _MANY, "max_pending_requests": _MANY, "max_requests": _MANY}
    endpoints = [{"endpoint": {"address": _address(engine)}}]
    return {
        "name": "engine",
        "type": "STATIC",
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _filter(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": f"{_TYPES}.{kind}", **config}}
