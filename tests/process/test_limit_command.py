"""Overrides by `gateway limit` and by the API, in two gateways on one real store: seen by both soon, and kept."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.doors import CHAT
from tests.effective import Effects
from tests.engines import ScriptedEngine
from tests.processes import Processes, Running, run, until
from tests.store_cluster import StoreCluster
from tests.store_sentinel import StoreSentinels
from tests.store_server import StoreServer

AnyStore = StoreServer | StoreSentinels | StoreCluster

RULES = [
    {"name": "few", "per": ["key"], "requests": 1, "window": "day"},
    {"name": "day", "per": ["tenant"], "tokens": 1_000_000, "window": "day"},
]
SECTIONS: dict[str, Any] = {"models": {"tiny": {"pool": "main"}}}
HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}


@dataclass
class Pair:
    """Two gateways that share a store."""

    processes: Processes
    configs: list[Path]
    gateways: list[Running]
    effects: Effects = field(default_factory=Effects)

    async def command(self, *arguments: str) -> list[dict[str, Any]]:
        """Run `gateway limit`; return the rows that it shows."""
        ended = await run("limit", arguments[0], "--config", str(self.configs[0]), "--format", "json", *arguments[1:])
        assert (ended.code, ended.stderr) == (0, "")
        return [json.loads(line) for line in ended.stdout.splitlines()]

    async def api(self, gateway: int, method: str, path: str, **asked: Any) -> Any:
        url = f"{self.gateways[gateway].admin_url}/admin/limits{path}"
        members, query = (asked, None) if method == "PUT" else (None, asked)
        async with self.processes.session.request(method, url, json=members, params=query) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def limit(self, gateway: int, *, tenant: str = "acme") -> int:
        """Return the figure of the rule `few` that a gateway would hold a call against."""
        applied = await self.api(gateway, "GET", "/applied", tenant=tenant, key="key-1", model="tiny")
        return int(applied["data"][0]["limit"])

    async def both(self, figure: int, *, tenant: str = "acme", more_s: float = 0.0) -> None:
        """Wait until both gateways hold calls against `figure`."""

        async def hold() -> bool:
            return [await self.limit(n, tenant=tenant) for n in (0, 1)] == [figure, figure]

        await self.effects.until(hold, more_s=more_s)

    async def entries(self, gateway: int, state: str) -> float:
        samples = await self.gateways[gateway].metrics(self.processes.session)
        return samples.total("gateway_settings_entries", settings="overrides", state=state)

    async def statuses(self, *, key: str = "key-1") -> list[int]:
        token = self.processes.token(key=key)
        return [(await self.processes.post(one, CHAT, HI, token=token)).status for one in self.gateways]


@pytest.fixture
def two_gateways(processes: Processes, scripted_engine: ScriptedEngine) -> Callable[[AnyStore], Any]:
    async def start(store: AnyStore) -> Pair:
        processes.token()
        sections = SECTIONS | {
            "pools": {"main": {"replicas": [scripted_engine.url]}},
            "limits": {"store": store.url, "store_timeout": "5s", "plans": {"standard": RULES}},
        }
        configs = [processes.config(**sections) for _ in range(2)]
        return Pair(processes, configs, list(await asyncio.gather(*map(processes.serve, configs))))

    return start


@pytest.mark.parametrize("store", ["store_server", "store_sentinels", "store_cluster"])
async def test_a_change_by_command_or_api_holds_in_both_gateways_soon_and_after_a_restart(
    two_gateways: Callable[[AnyStore], Any], request: pytest.FixtureRequest, store: str
) -> None:
    pair: Pair = await two_gateways(request.getfixturevalue(store))
    assert await pair.statuses() == [200, 429]

    (row,) = await pair.command("set", "--tenant", "acme", "--rule", "few", "--requests", "2", "--for", "2h")
    assert (row["tenant"], row["rule"], row["requests"], row["in_force"]) == ("acme", "few", 2, True)
    await pair.both(2)
    assert await pair.statuses() == [200, 429]

    await pair.api(1, "PUT", "/rules", tenant="acme", rule="few", requests=3)
    assert await pair.limit(1) == 3  # at once, where it was said
    applied = await pair.api(1, "GET", "/applied", tenant="acme", key="key-1", model="tiny")
    assert [row["used"] > 0 for row in applied["data"]] == [True, True]
    await pair.both(3)
    assert await pair.statuses() == [200, 429]
    for gateway in pair.gateways:
        await gateway.says("override rule few acme: requests 2 until ")
        await gateway.says("-> requests 3")

    await pair.gateways[0].stop()
    pair.gateways[0] = await pair.processes.serve(pair.configs[0])
    assert await pair.limit(0) == 3
    assert await pair.statuses() == [429, 429]

    assert await pair.command("remove", "--tenant", "acme", "--rule", "few") == []
    await pair.both(1)
    assert await pair.statuses(key="key-2") == [200, 429]


async def test_what_ends_ends_in_both_nonsense_stops_neither_and_writers_at_once_lose_nothing(
    two_gateways: Callable[[StoreServer], Any], store_server: StoreServer
) -> None:
    pair: Pair = await two_gateways(store_server)
    with store_server.client() as client:
        client.hset(
            "gw:{overrides}:settings", mapping={"rule few": "\x00", "rule gone acme": b"{}", "version": "by hand"}
        )
    writers = [
        pair.api(n % 2, "PUT", "/rules", tenant="other", key=f"key-{n}", rule="few", requests=n) for n in range(20)
    ]
    by_command = pair.command("set", "--tenant", "other", "--rule", "few", "--requests", "20")
    await asyncio.gather(*writers, by_command)
    rows = (await pair.api(0, "GET", "", tenant="other"))["data"]
    assert {row.get("key", "key-20"): row["requests"] for row in rows} == {f"key-{n}": n for n in range(21)}

    await pair.api(0, "PUT", "/rules", tenant="acme", rule="few", requests=9, **{"for": "4s"})
    await pair.both(9)
    assert [await pair.entries(n, "left_out") for n in (0, 1)] == [2, 2]
    await pair.both(1, more_s=4)
    assert [await pair.entries(n, "in_force") for n in (0, 1)] == [21, 21]
    faults = [row.get("fault") for row in await pair.command("show") if row.get("tenant") != "other"]
    assert faults == ["Its time is over.", "Its name is not one of an override.", "set_at is not there."]


async def test_the_last_known_holds_while_the_store_is_away_and_is_given_back_to_one_that_lost_it(
    two_gateways: Callable[[StoreServer], Any], own_store_server: StoreServer
) -> None:
    pair: Pair = await two_gateways(own_store_server)
    await pair.api(0, "PUT", "/rules", tenant="acme", rule="few", requests=5)
    await pair.both(5)
    own_store_server.stop()

    async def noticed() -> bool:
        samples = [await gateway.metrics(pair.processes.session) for gateway in pair.gateways]
        return all(one.total("gateway_settings_failures_total", settings="overrides") > 0 for one in samples)

    await until(noticed)
    assert [await pair.limit(n) for n in (0, 1)] == [5, 5]
    listed = await pair.api(0, "GET", "")
    assert (listed["current"], listed["data"][0]["requests"]) == (False, 5)
    applied = await pair.api(0, "GET", "/applied", tenant="acme", key="key-1", model="tiny")
    assert [(row["limit"], row["used"], row["remaining"]) for row in applied["data"]] == [
        (5, None, None),
        (1_000_000, None, None),
    ]
    url, asked = f"{pair.gateways[0].admin_url}/admin/limits/rules", {"tenant": "acme", "rule": "few", "requests": 7}
    async with pair.processes.session.put(url, json=asked) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, "limits_unavailable")

    own_store_server.start()  # without its data

    async def back() -> bool:
        return [row["requests"] for row in (await pair.api(1, "GET", ""))["data"]] == [5]

    await until(back)
    await pair.api(0, "PUT", "/rules", tenant="acme", rule="few", requests=6)
    await pair.both(6)


async def test_a_gateway_that_starts_before_its_store_follows_when_that_is_there(
    processes: Processes, own_store_server: StoreServer, scripted_engine: ScriptedEngine
) -> None:
    processes.token()
    config = processes.config(
        **SECTIONS,
        pools={"main": {"replicas": [scripted_engine.url]}},
        limits={"store": own_store_server.url, "plans": {"standard": RULES}},
    )
    ended = await run("limit", "set", "--config", str(config), "--tenant", "acme", "--rule", "few", "--requests", "5")
    assert ended.code == 0
    own_store_server.freeze()
    pair = Pair(processes, [config], [await processes.serve(config)])
    assert await pair.entries(0, "in_force") == 0
    own_store_server.thaw()

    async def followed() -> bool:
        return await pair.limit(0) == 5

    await until(followed)
