"""A whole gateway in this process: config in, a running `Door` out, on free loopback ports."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway import pipeline
from gateway.app import Gateway
from gateway.client.clients import Clients
from gateway.clock import Clock, SystemClock
from gateway.config import file
from gateway.identity import development
from gateway.outbox import Outbox
from gateway.telemetry.writer import LineWriter
from tests.deadlines import DEADLINE_S
from tests.leaping import clock_of

MODEL = "acme/tiny"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def config_with(*replicas: str, key: Path, **sections: Any) -> dict[str, Any]:
    """Return a config with one model before `replicas`; `sections` are merged over it, deeply."""
    base: dict[str, Any] = {
        "server": {"listen": "127.0.0.1:0", "drain_timeout": "2s", "watch_config": None},
        "admin": {"listen": "127.0.0.1:0"},
        "auth": {"development_key": str(key)},
        "limits": {"plans": {"standard": []}},
        "models": {MODEL: {"pool": "main", "aliases": ["tiny"], "served_name": "tiny"}},
        "pools": {"main": {"replicas": list(replicas), "timeouts": {"connect": "10s"}, "health": {"interval": "30s"}}},
    }
    return _merged(base, sections)


@dataclass
class Door:
    """A running gateway as a client and an operator see it. `path` is its config, which it reads again when told."""

    url: str
    admin_url: str
    signing: Any
    lines: list[str]
    writer: LineWriter
    session: aiohttp.ClientSession
    gateway: Gateway
    path: Path

    def token(self, *, tenant: str = "acme", key: str = "key-1", plan: str | None = None, ttl_s: float = 600) -> str:
        now = SystemClock().now()
        return development.sign(self.signing, tenant=tenant, key_id=key, plan=plan, ttl_s=ttl_s, now=now)

    def token_of(self, **claims: Any) -> str:
        """Sign a token with these claims besides what it must have."""
        known = jwt.decode(self.token(), options={"verify_signature": False})
        key_id = jwt.get_unverified_header(self.token())["kid"]
        return jwt.encode(known | claims, self.signing, algorithm="ES256", headers={"kid": key_id})

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def post(self, path: str, body: Any, *, token: str | None = None, **headers: str) -> "Reply":
        """Send a call and read its whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {token or self.token()}", "Content-Type": "application/json", **headers}
        async with self.session.post(self.url + path, data=data, headers=sent) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, *, token: str | None = None) -> "Reply":
        headers = {"Authorization": f"Bearer {token or self.token()}"}
        async with self.session.get(self.url + path, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get_admin(self, path: str) -> "Reply":
        async with self.session.get(self.admin_url + path) as response:
            return Reply(response.status, response.headers, await response.read())

    async def metrics(self) -> "Samples":
        async with self.session.get(self.admin_url + "/metrics") as response:
            return Samples(await response.text())

    async def until(self, condition: Callable[["Samples"], bool]) -> "Samples":
        """Scrape until `condition` holds; fail with the last scrape otherwise."""
        samples = await self.metrics()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition(samples):
                    await asyncio.sleep(0.01)
                    samples = await self.metrics()
        except TimeoutError:
            pytest.fail(f"never came true; the last scrape:\n{samples.text}")
        return samples

    async def logged(self, calls: int) -> list[str]:
        """Wait until that many calls left a line in the access log; return all lines."""
        async with asyncio.timeout(DEADLINE_S):
            while sum('"inference_id"' in line for line in self.lines) < calls:
                self.writer.flush()
                await asyncio.sleep(0.01)
        return self.lines

    async def idle(self) -> "Samples":
        """Wait until nothing is under way."""
        return await self.until(
            lambda s: s.total("gateway_requests_in_flight") == 0 and s.total("gateway_replica_in_flight") == 0
        )


@dataclass(frozen=True)
class Reply:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]


@dataclass
class Samples:
    """One scrape."""

    text: str
    _samples: list[Any] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for family in text_string_to_metric_families(self.text):
            self._samples += family.samples
            self._names |= {family.name + end for end in ("", "_total", "_bucket", "_count", "_sum")}

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each sample of that name."""
        return [dict(sample.labels) for sample in self._samples if sample.name == name]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of that name whose labels include these; there must be such a metric."""
        assert name in self._names, name
        return float(sum(s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items()))


OpenDoor = Callable[..., Awaitable[Door]]


@pytest.fixture
async def open_door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    """Open gateways: `await open_door(engine.url, limits={…})`."""
    doors: list[Door] = []
    writers: list[LineWriter] = []
    key = tmp_path / "development-key.pem"
    signing = development.load_or_create(key)
    async with aiohttp.ClientSession() as session:

        async def open_one(*replicas: str, clock: Clock | None = None, **sections: Any) -> Door:
            text = yaml.safe_dump(config_with(*replicas, key=key, **sections), sort_keys=False)
            path = tmp_path / f"config-{len(doors)}.yaml"
            path.write_text(text)
            lines: list[str] = []
            writer = LineWriter(lambda data: lines.extend(data.decode().splitlines()))
            writer.start()
            writers.append(writer)
            door = Gateway(file.read(path), writer, clock or clock_of(asyncio.get_running_loop()))
            port, admin_port = await door.start()
            url, admin_url = (f"http://127.0.0.1:{number}" for number in (port, admin_port))
            doors.append(Door(url, admin_url, signing, lines, writer, session, door, path))
            return doors[-1]

        yield open_one
    for door in doors:
        await door.gateway.stop()
    for writer in writers:
        writer.close()


@asynccontextmanager
async def listening(door: Door, path: pipeline.Path) -> AsyncIterator[int]:
    """Serve every request by `path` on the pipeline of `door`; give the port."""
    serving = door.gateway._pipeline
    clients = Clients(
        lambda request: serving.serve(request, "other", path),
        serving.malformed,
        outbox=Outbox(asyncio.get_running_loop()),
        head_timeout_s=DEADLINE_S,
        write_timeout_s=None,
        max_field=1000,
    )
    server = await asyncio.get_running_loop().create_server(clients, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        clients.abort()


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
