"""Orders for replicas by `gateway replica` and by the API, in two gateways on one real store: in both soon, kept."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway import cli
from tests.effective import Effects
from tests.engines import ScriptedEngine
from tests.ports import free_port
from tests.processes import Processes, Running, run, until
from tests.store_server import StoreServer


async def shown(processes: Processes, gateway: Running) -> Any:
    async with processes.session.get(f"{gateway.admin_url}/admin/pools/main") as response:
        assert response.status == 200
        return await response.json()


async def test_an_order_holds_in_both_soon_ends_survives_a_restart_and_a_store_that_loses_it(
    processes: Processes, scripted_engine: ScriptedEngine, own_store_server: StoreServer
) -> None:
    processes.token()
    other = f"http://127.0.0.1:{free_port()}"
    sections: dict[str, Any] = {
        "models": {"tiny": {"pool": "main"}},
        "pools": {"main": {"replicas": [scripted_engine.url], "health": {"interval": "1h"}}},
        "limits": {"store": own_store_server.url, "store_timeout": "5s", "plans": {"standard": []}},
    }
    configs = [processes.config(**sections) for _ in range(2)]
    gateways, effects = list(await asyncio.gather(*map(processes.serve, configs))), Effects()

    async def both(states: list[str], *, more_s: float = 0.0) -> None:
        """Wait until the replicas of both are in these states."""

        async def are() -> bool:
            pools = [await shown(processes, gateway) for gateway in gateways]
            return all([one["state"] for one in pool["replicas"]] == states for pool in pools)

        await effects.until(are, more_s=more_s)

    async def command(word: str, *arguments: str, url: str = scripted_engine.url) -> Any:
        where = ["--config", str(configs[0]), "--pool", "main", "--url", url]
        return await run("replica", word, *where, *arguments)

    await both(["up"])
    ended = await command("drain", "--for", "3s")
    assert ended.code == 0
    assert "pool main has no replica left that takes calls" in ended.stderr
    await both(["drained"])
    await both(["up"], more_s=3)
    assert (await command("drain")).code == 0
    await both(["drained"])
    ended = await command("add", "--weight", "3", url=other)
    assert (ended.code, ended.stderr) == (0, "")
    await both(["drained", "down"])  # until a probe has found it up

    await gateways[0].stop()
    gateways[0] = await processes.serve(configs[0], until="/livez")  # no replica takes calls: it is not ready
    states = [one["state"] for one in (await shown(processes, gateways[0]))["replicas"]]
    assert states[0] == "drained"
    assert len(states) == 2

    own_store_server.stop()

    async def noticed() -> bool:
        return not any([(await shown(processes, gateway))["current"] for gateway in gateways])

    await until(noticed)
    assert len((await shown(processes, gateways[1]))["replicas"]) == 2
    url = f"{gateways[1].admin_url}/admin/pools/main/replicas"
    async with processes.session.put(url, json={"order": "removed", "url": other}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, "limits_unavailable")
    own_store_server.start()  # without its data

    async def back() -> bool:
        pools = [await shown(processes, gateway) for gateway in gateways]
        return all(pool["current"] and len(pool["orders"]) == 2 for pool in pools)

    await until(back)
    assert (await command("undrain")).code == 0
    assert (await command("restore", url=other)).code == 0
    await both(["up"])
    await gateways[1].says("none -> drained until")
    await gateways[1].says("drained -> none")


@pytest.fixture
def replica(tmp_path: Path) -> Callable[..., Result]:
    """Run `gateway replica` in this process with the config's `store`."""

    def on(store: str, *arguments: str, pool: str = "main", discovery: Any = None) -> Result:
        path = tmp_path / "config.yaml"
        sections = {
            "auth": {"development_key": "key.pem"},
            "models": {"acme/tiny": {"pool": pool}},
            "pools": {pool: {"discovery": discovery} if discovery else {"replicas": ["http://127.0.0.1:1"]}},
            "limits": {"store": store},
        }
        path.write_text(yaml.safe_dump(sections))
        word, *rest = arguments
        return CliRunner().invoke(cli.main, ["replica", word, "--config", str(path), *rest])

    return on


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["drain", "--pool", "other", "--url", "http://a:1"], "--pool: There is no pool 'other'; there are main."),
        (["drain", "--pool", "main", "--url", "http://u:hunter2@a:1"], "--url: url must be http(s)://host"),
        (["add", "--pool", "main", "--url", "http://a:1", "--weight", "0"], "--weight: weight must be a number"),
        (["remove", "--pool", "main", "--url", "http://a:1", "--for", "ever"], "--for: for must be a duration"),
        (
            ["add", "--pool", "main", "--url", "http://a:1", "--max-in-flight", "0"],
            "--max-in-flight: max_in_flight must be a whole number from 1",
        ),
    ],
)
def test_a_wrong_option_is_named_and_ends_with_2(
    replica: Callable[..., Result], arguments: list[str], told: str
) -> None:
    ended = replica(f"redis://127.0.0.1:{free_port()}/0", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(told)
    assert "hunter2" not in ended.output


def test_a_store_that_cannot_be_asked_is_told(replica: Callable[..., Result], store_server: StoreServer) -> None:
    ended = replica("memory", "list")
    assert (ended.exit_code, "/admin/pools" in ended.stderr) == (2, True)
    ended = replica(f"redis://127.0.0.1:{free_port()}/0", "list")
    assert (ended.exit_code, "limits.store: it does not answer" in ended.stderr) == (1, True)
    ended = replica(store_server.url, "undrain", "--pool", "main", "--url", "http://a:1")
    assert (ended.exit_code, ended.stderr) == (1, "There is no such order.\n")


def test_who_drains_what_is_not_there_is_warned_unless_discovery_may_find_it(
    replica: Callable[..., Result], store_server: StoreServer
) -> None:
    drain = ["drain", "--pool", "main", "--url", "http://127.0.0.1:2/"]
    ended = replica(store_server.url, *drain)
    assert (ended.exit_code, ended.stderr) == (0, "Warning: pool main has no replica http://127.0.0.1:2 so far.\n")
    assert replica(store_server.url, "add", *drain[1:]).stderr == ""
    assert replica(store_server.url, *drain).stderr == ""
    ended = replica(store_server.url, *drain, discovery={"file": {"path": "replicas.yaml"}})
    assert (ended.exit_code, ended.stderr) == (0, "")


def test_an_order_for_a_pool_that_is_gone_is_shown_as_such(
    replica: Callable[..., Result], store_server: StoreServer
) -> None:
    where = ["--pool", "main", "--url", "http://127.0.0.1:1/"]
    assert replica(store_server.url, "remove", *where).exit_code == 0
    header, line = replica(store_server.url, "list", pool="new").stdout.splitlines()
    assert header.split() == ["pool", "url", "order", "change", "set_at", "until", "state"]
    assert line.split()[:3] == ["main", "http://127.0.0.1:1", "removed"]
    assert line.endswith("not in force: There is no pool 'main'; there are new.")
    ended = replica(store_server.url, "restore", *where, "--format", "json", pool="new")
    assert (ended.exit_code, ended.output) == (0, "")
    said = {"weight": 2, "served_name": "t", "server_name": "engine.example", "max_in_flight": 8}
    options = [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    ended = replica(store_server.url, "add", *where, *options, "--format", "json")
    assert (said | {"order": "added"}).items() <= json.loads(ended.stdout).items()
    _, line = replica(store_server.url, "list").stdout.splitlines()
    assert "  weight 2.0, served_name t, server_name engine.example, max_in_flight 8  " in line
