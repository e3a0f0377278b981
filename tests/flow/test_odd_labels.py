"""Whatever clients and engines name, a scrape stays as large as the config makes it, and quick."""

import json
import random
import string
import time
from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse

from tests.doors import CHAT, MODEL, Door, OpenDoor
from tests.engines import Connection, Received, ScriptedEngine
from tests.raw_client import raw_client
from tests.transcripts import answer, chat, event, http, sse, transcript

TENANTS, OTHERS = 20, 60
EACH = 400
AT_ONCE = 50
# RFC 9110's and others that the parser of heads knows, in short; what it does not know is no HTTP.
METHODS = [
    "GET",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "PROPFIND",
    "MKCOL",
    "LOCK",
    "SEARCH",
    "M-SEARCH",
    "PURGE",
]
RULE = {"name": "calls", "per": ["key"], "requests": 1_000_000, "window": "1h"}
OUTCOMES = {"ok", "refused", "upstream_failed", "broken", "client_gone"}
# Every label that somebody else's text could come into, with all that it may say.
ALLOWED: dict[str, set[str]] = {
    "endpoint": {"chat", "completions", "models", "other"},
    "model": {MODEL, "unknown"},
    "outcome": OUTCOMES,
    "status": {"200", "400", "401", "404", "405", "499", "502", "503"},
    "code": {
        "invalid_json", "invalid_value", "invalid_token", "missing_token", "method_not_allowed", "model_not_found",
        "not_found", "overloaded", "upstream_error", "upstream_timeout",
    },
    "kind": {"prompt", "completion", "cached", "reasoning"},
    "source": {"engine", "estimated"},
    "reason": {
        "missing_token", "malformed", "not_reported", "engine_died", "engine_error", "unfinished", "retry_budget",
    },
    "result": {"answered", "refused", "status", "overloaded", "malformed", "reset", "unfinished", "ok", "failed"},
    "rule": {"calls"},
    "decision": {"admitted"},
    "pool": {"main"},
    "operation": {"reserve", "settle"},
    "priority": {"normal"},
    "issuer": {"gateway-development"},
    "settings": {"overrides", "revocations", "orders"},
    "state": {"in_force", "left_out"},
}  # fmt: skip


class Odd:
    """Text that nobody has had before."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def word(self) -> str:
        return "".join(self.chance.choices(string.ascii_letters + string.digits + "-_.", k=24))

    def request(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: a",
            f"User-Agent: {self.word()}",
            f"X-{self.word()}: {self.word()}",
        ]
        lines += [] if token is None else [f"Authorization: Bearer {token}", "Content-Type: application/json"]
        return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data

    def call(self, token: str | None, **changes: Any) -> bytes:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5} | changes
        return self.request("POST", CHAT, body, token=token)

    async def engine(self, request: Received, connection: Connection) -> None:
        """Answer with names, codes, reasons and statuses of its own."""
        named: dict[str, Any] = {"model": self.word(), "system_fingerprint": self.word(), "service_tier": self.word()}
        error = {"error": {"type": self.word(), "code": self.word(), "param": self.word(), "message": self.word()}}
        usage = {"usage": {self.word(): 1, "prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}}
        whole = json.loads(answer("chat", "Hi")) | named
        whole["choices"][0]["finish_reason"] = self.word()
        kind = self.chance.choice(["whole", "usage", "none", "status", "stream", "broken", "error"])
        if request.json().get("stream"):
            events = [chat("a", **named), *transcript("b", finish_reason=self.word())]
            cut = {"error": [events[0], event(error)], "broken": events[:-2]}.get(kind, events)
            await connection.send(sse(cut))
        elif kind == "status":
            status = self.chance.choice(
                [201, 204, 299, 300, 304, 400, 402, 413, 418, 422, 429, 499, 500, 503, 599, 999]
            )
            body = b"" if status in (204, 304) else json.dumps(error).encode()
            await connection.send(http(body, status=f"{status} {self.word()}", headers=[(self.word(), self.word())]))
        else:
            await connection.send(http(json.dumps({"whole": whole, "usage": whole | usage}.get(kind, error)).encode()))


async def sent(door: Door, requests: list[bytes]) -> None:
    """Send requests one behind another, and read all answers."""
    async with raw_client(door.port) as client:
        await client.send(b"".join(requests))
        for request in requests:
            await client.answer(bodiless=request.startswith(b"HEAD"))


async def storm(door: Door, odd: Odd, tenants: list[str]) -> None:
    token = door.token()
    kinds = {
        "paths": [odd.request("GET", f"/{odd.word()}/{odd.word()}?{odd.word()}") for _ in range(EACH)],
        "paths below": [odd.request("GET", f"/v1/models/{odd.word()}", token=token) for _ in range(EACH)],
        "methods": [odd.request(method, path) for method in METHODS for path in (CHAT, "/v1/models", "/" + odd.word())],
        "strangers": [odd.call(odd.chance.choice([None, odd.word()]), model=odd.word()) for _ in range(EACH)],
        "models": [odd.call(token, model=odd.word()) for _ in range(EACH)],
        "invalid": [odd.call(token, model=odd.word(), messages=odd.word()) for _ in range(EACH)],
        "tenants": [odd.call(door.token(tenant=one, key=odd.word()), model=odd.word()) for one in tenants],
        "engine": [odd.call(token, stream=odd.chance.random() < 0.5, user=odd.word()) for _ in range(EACH)],
    }
    requests = [requests[at : at + AT_ONCE] for requests in kinds.values() for at in range(0, len(requests), AT_ONCE)]
    for few in requests:
        await sent(door, few)
    for _ in range(20):  # no HTTP: the connection ends with the answer
        async with raw_client(door.port) as client:
            await client.send(odd.request(odd.word(), "/" + odd.word()))
            assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_what_others_name_makes_no_series(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    pool = {"attempts": 1, "breaker": None}
    door = await open_door(
        scripted_engine.url,
        pools={"main": pool},
        metrics={"max_tenants": TENANTS},
        limits={"plans": {"standard": [RULE]}},
    )
    names, series = [f"tenant-{number}" for number in range(OTHERS)], list[set[str]]()
    for seed in range(2):
        odd = Odd(seed)
        scripted_engine.default = odd.engine
        await storm(door, odd, names)
        samples = await door.idle()
        # The loop's lag is there from its first second on.
        lines = [line for line in samples.text.splitlines() if not line.startswith(("#", "gateway_event_loop_lag_"))]
        series.append({line.rpartition(" ")[0] for line in lines})
        names = [odd.word() for _ in names]
    assert series[1] - series[0] == set()
    found: defaultdict[str, set[str]] = defaultdict(set)
    for family in parse(samples.text):
        for sample in family.samples:
            for label, value in sample.labels.items():
                found[label].add(value)
    assert found.pop("tenant") == {"acme", *[f"tenant-{number}" for number in range(TENANTS - 1)], "other", "unknown"}
    assert found.pop("replica") == {scripted_engine.url.removeprefix("http://")}
    for own in ("le", "version", "python", "compiled", "implementation", "major", "minor", "patchlevel"):
        found.pop(own)
    odd_ones = {label: values - ALLOWED.get(label, set()) for label, values in found.items()}
    assert not any(odd_ones.values()), odd_ones
    assert OUTCOMES - {"client_gone"} <= found["outcome"]
    assert len(samples.text) < 1_000_000
    took = []
    for _ in range(5):
        began = time.process_time()
        await door.get_admin("/metrics")
        took.append(time.process_time() - began)
    assert min(took) < 0.1
