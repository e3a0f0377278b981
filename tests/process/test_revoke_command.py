"""Revocations by `gateway revoke` and by the API, in two gateways on one real store: in both soon, and kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway import cli
from tests.doors import CHAT
from tests.effective import Effects
from tests.engines import ScriptedEngine
from tests.ports import free_port
from tests.processes import Processes, Running, run, until
from tests.store_server import StoreServer

HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
BOTH = (0, 1)


@dataclass
class Pair:
    """Two gateways that share a store."""

    processes: Processes
    configs: list[Path]
    gateways: list[Running]
    effects: Effects = field(default_factory=Effects)

    async def command(self, *arguments: str) -> list[dict[str, Any]]:
        """Run `gateway revoke`; return the rows that it shows."""
        ended = await run("revoke", "--config", str(self.configs[0]), "--format", "json", *arguments)
        assert (ended.code, ended.stderr) == (0, "")
        return [json.loads(line) for line in ended.stdout.splitlines()]

    async def api(self, gateway: int, method: str, **asked: Any) -> Any:
        members, query = (asked, None) if method == "PUT" else (None, asked)
        url = f"{self.gateways[gateway].admin_url}/admin/revocations"
        async with self.processes.session.request(method, url, json=members, params=query) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def statuses(self, key: str) -> list[int]:
        token = self.processes.token(key=key)
        return [(await self.processes.post(one, CHAT, HI, token=token)).status for one in self.gateways]

    async def both(self, status: int, key: str, *, more_s: float = 0.0) -> None:
        """Wait until both gateways answer calls of `key` so."""

        async def answer() -> bool:
            return await self.statuses(key) == [status, status]

        await self.effects.until(answer, more_s=more_s)

    @asynccontextmanager
    async def traffic(self, key: str) -> AsyncIterator[list[int]]:
        """Call both gateways with one token of `key` all the while; give the statuses."""
        token, seen = self.processes.token(key=key), list[int]()

        async def call(gateway: Running) -> None:
            while True:
                seen.append((await self.processes.post(gateway, CHAT, HI, token=token)).status)
                await asyncio.sleep(0.01)

        callers = [asyncio.create_task(call(gateway)) for gateway in self.gateways for _ in range(2)]
        try:
            yield seen
        finally:
            for caller in callers:
                caller.cancel()
            ended = await asyncio.gather(*callers, return_exceptions=True)
        assert {type(one) for one in ended} == {asyncio.CancelledError}


@pytest.fixture
def two_gateways(processes: Processes, scripted_engine: ScriptedEngine) -> Callable[[StoreServer], Any]:
    async def start(store: StoreServer) -> Pair:
        processes.token()
        sections: dict[str, Any] = {
            "models": {"tiny": {"pool": "main"}},
            "pools": {"main": {"replicas": [scripted_engine.url]}},
            "limits": {"store": store.url, "store_timeout": "5s", "plans": {"standard": []}},
        }
        configs = [processes.config(**sections) for _ in BOTH]
        return Pair(processes, configs, list(await asyncio.gather(*map(processes.serve, configs))))

    return start


async def test_what_is_revoked_by_command_or_api_is_refused_by_both_soon_and_after_a_restart_and_nothing_else(
    two_gateways: Callable[[StoreServer], Any], store_server: StoreServer
) -> None:
    pair: Pair = await two_gateways(store_server)
    async with pair.traffic("good") as seen:
        assert await pair.statuses("bad") == [200, 200]
        (row,) = await pair.command("--tenant", "acme", "--key", "bad", "--reason", "leaked")
        assert (row["tenant"], row["key"], row["reason"], row["in_force"]) == ("acme", "bad", "leaked", True)
        await pair.both(401, "bad")

        await pair.api(1, "PUT", tenant="acme", key="worse")
        assert (await pair.statuses("worse"))[1] == 401  # at once, where it was said
        await pair.both(401, "worse")

        await pair.api(0, "DELETE", tenant="acme", key="worse")
        await pair.both(200, "worse")
        before = len(seen)
        await pair.api(0, "PUT", tenant="acme", key="worse", **{"for": "3s"})
        await pair.both(401, "worse")
        await pair.both(200, "worse", more_s=3)
        assert len(seen) > before
    assert set(seen) == {200}
    for gateway in pair.gateways:
        await gateway.says("revocation key acme bad: none -> revoked")
        assert "leaked" not in gateway.log

    await pair.gateways[0].stop()
    pair.gateways[0] = await pair.processes.serve(pair.configs[0])
    assert await pair.statuses("bad") == [401, 401]
    assert [row["key"] for row in (await pair.api(0, "GET"))["data"] if row["in_force"]] == ["bad"]


async def test_what_is_revoked_stays_so_while_the_store_is_away_and_is_given_back_to_one_that_lost_it(
    two_gateways: Callable[[StoreServer], Any], own_store_server: StoreServer
) -> None:
    pair: Pair = await two_gateways(own_store_server)
    await pair.api(0, "PUT", tenant="acme", key="bad")
    await pair.both(401, "bad")
    own_store_server.stop()

    async def noticed() -> bool:
        samples = [await gateway.metrics(pair.processes.session) for gateway in pair.gateways]
        return all(one.total("gateway_settings_failures_total", settings="revocations") > 0 for one in samples)

    await until(noticed)
    assert await pair.statuses("bad") == [401, 401]
    assert await pair.statuses("good") == [200, 200]
    listed = await pair.api(0, "GET")
    assert (listed["current"], listed["data"][0]["key"]) == (False, "bad")
    url = f"{pair.gateways[0].admin_url}/admin/revocations"
    async with pair.processes.session.put(url, json={"tenant": "acme"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, "limits_unavailable")

    own_store_server.start()  # without its data

    async def back() -> bool:
        listed = await pair.api(1, "GET")
        return listed["current"] and [row["key"] for row in listed["data"]] == ["bad"]

    await until(back)
    await pair.api(0, "DELETE", tenant="acme", key="bad")
    await pair.both(200, "bad")


@pytest.fixture
def revoke(tmp_path: Path) -> Callable[..., Result]:
    """Run `gateway revoke` in this process with the config's `store`."""

    def on(store: str, *arguments: str) -> Result:
        path = tmp_path / "config.yaml"
        sections = {
            "auth": {"development_key": "key.pem"},
            "models": {"acme/tiny": {"pool": "main"}},
            "pools": {"main": {"replicas": ["http://127.0.0.1:1"]}},
            "limits": {"store": store},
        }
        path.write_text(yaml.safe_dump(sections))
        return CliRunner().invoke(cli.main, ["revoke", "--config", str(path), *arguments])

    return on


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--tenant: missing; --list shows what is revoked"),
        (["--tenant", "acme", "--key", "k", "--jti", "j"], "--jti: A key is revoked, or one token by its jti"),
        (["--tenant", "acme", "--for", "ever"], "--for: for must be a duration"),
        (["--undo", "--tenant", "acme", "--reason", "why"], "--reason: There is no 'reason' here"),
        (["--undo", "--list"], "--undo, --list: give one of them"),
        (["--list", "--key", "k"], "--key: not with --list"),
    ],
)
def test_a_wrong_option_is_named_and_ends_with_2(
    revoke: Callable[..., Result], arguments: list[str], told: str
) -> None:
    ended = revoke(f"redis://127.0.0.1:{free_port()}/0", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(told)


def test_a_store_that_cannot_be_asked_is_told(revoke: Callable[..., Result], store_server: StoreServer) -> None:
    ended = revoke("memory", "--list")
    assert (ended.exit_code, "/admin/revocations" in ended.stderr) == (2, True)
    ended = revoke(f"redis://127.0.0.1:{free_port()}/0", "--list")
    assert (ended.exit_code, "limits.store: it does not answer" in ended.stderr) == (1, True)
    ended = revoke(store_server.url, "--undo", "--tenant", "acme")
    assert (ended.exit_code, ended.stderr) == (1, "There is no such revocation.\n")


def test_the_table_says_what_is_revoked(revoke: Callable[..., Result], store_server: StoreServer) -> None:
    revoke(store_server.url, "--tenant", "acme", "--reason", "not\npaid")
    ended = revoke(store_server.url, "--tenant", "other", "--jti", "7c1e")
    assert ended.stdout.splitlines()[1].split()[:2] == ["other", "7c1e"]
    header, *lines = revoke(store_server.url, "--list").stdout.splitlines()
    assert header.split() == ["tenant", "key", "jti", "reason", "set_at", "until", "state"]
    assert len(lines) == 2
    assert "not\\npaid" in lines[0]
    ended = revoke(store_server.url, "--undo", "--tenant", "acme", "--format", "json")
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert [
        json.loads(line)["jti"] for line in revoke(store_server.url, "--list", "--format", "json").stdout.splitlines()
    ] == ["7c1e"]
