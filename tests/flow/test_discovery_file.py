"""Replicas listed in a file that changes while the gateway runs, under load too; and what a reload makes of sources."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import PoolEntry
from tests.doors import CHAT, Door, OpenDoor, Samples
from tests.engines import ScriptedEngine
from tests.envelope import error_of
from tests.load import until

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
Engines = Callable[[], Awaitable[ScriptedEngine]]


def swap(path: Path, text: str) -> None:
    """Put another content in a file's place as Kubernetes does: by a link that changes its target in one step."""
    target = path.parent / f"data-{len([*path.parent.iterdir()])}"
    target.write_text(text)
    link = path.parent / "link"
    link.symlink_to(target)
    link.replace(path)


def listed(path: Path, *engines: ScriptedEngine) -> None:
    swap(path, json.dumps([engine.url for engine in engines]))


def pools(path: Path, **more: Any) -> dict[str, Any]:
    health = {"interval": "30s"}
    return {"main": {"discovery": {"file": {"path": str(path), "interval": "50ms"}}, "health": health, **more}}


def there(samples: Samples) -> set[str]:
    return {labels["replica"] for labels in samples.labels("gateway_replica_up")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "listed"
    folder.mkdir()
    return folder / "replicas.yaml"


async def test_a_file_is_followed_through_swapped_links_and_a_bad_one_changes_nothing(
    open_door: OpenDoor, path: Path, scripted_engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await scripted_engines(), await scripted_engines()
    swap(path, json.dumps([{"url": one.url, "served_name": "from-file"}]))
    door = await open_door(pools=pools(path))
    assert (await door.post(CHAT, ASK)).status == 200
    assert one.requests[0].json()["model"] == "from-file"
    swap(path, "- not a url")
    await door.until(lambda samples: samples.total("gateway_discovery_refreshes_total", result="failed") >= 2)
    assert there(await door.metrics()) == {f"127.0.0.1:{one.port}"}
    assert caplog.text.count("replicas.yaml: [0].url: String should match") == 1
    listed(path, other)
    await door.until(lambda samples: there(samples) == {f"127.0.0.1:{other.port}"})
    await asyncio.to_thread(path.unlink)
    await door.until(lambda samples: samples.total("gateway_discovery_age_seconds") > 0.15)
    assert (await door.post(CHAT, ASK)).status == 200
    listed(path)
    await door.until(lambda samples: there(samples) == set())
    error_of(await door.post(CHAT, ASK), 503, "no_replica_available", "server_error")


async def test_listed_replicas_stay_beside_those_that_are_found(
    open_door: OpenDoor, path: Path, scripted_engines: Engines
) -> None:
    fixed, moving = await scripted_engines(), await scripted_engines()
    swap(path, json.dumps([moving.url, {"url": fixed.url, "weight": 9}]))
    door = await open_door(fixed.url, pools=pools(path))
    assert there(await door.metrics()) == {f"127.0.0.1:{engine.port}" for engine in (fixed, moving)}
    rows = (await door.get_admin("/admin/pools/main")).json()["replicas"]
    assert {row["url"]: row["from"] for row in rows} == {moving.url: "discovery", fixed.url: "config"}
    assert {replica.full_weight for _, replica in door.gateway._pools.replicas} == {1.0}
    listed(path)
    await door.until(lambda samples: there(samples) == {f"127.0.0.1:{fixed.port}"})


async def test_a_reload_keeps_what_was_found_until_another_source_says_more(
    open_door: OpenDoor, path: Path, scripted_engines: Engines
) -> None:
    one, other = await scripted_engines(), await scripted_engines()
    listed(path, one)
    door = await open_door(pools=pools(path))
    found = door.gateway._pools["main"].replicas

    def configure(**entry: Any) -> None:
        door.gateway._pools.configure({"main": PoolEntry.model_validate(entry)})

    discovery = {"file": {"path": str(path), "interval": "50ms"}}
    configure(discovery=discovery, attempts=1)
    assert door.gateway._pools["main"].replicas == found
    elsewhere = path.with_name("elsewhere.yaml")
    configure(discovery={"file": {"path": str(elsewhere), "interval": "50ms"}})
    await door.until(lambda samples: samples.total("gateway_discovery_refreshes_total", result="failed") >= 2)
    assert door.gateway._pools["main"].replicas == found
    listed(elsewhere, other)
    await door.until(lambda samples: there(samples) == {f"127.0.0.1:{other.port}"})
    configure(replicas=[one.url])
    assert [replica.url for replica in door.gateway._pools["main"].replicas] == [one.url]
    await door.until(lambda samples: not samples.labels("gateway_discovery_age_seconds"))
    listed(elsewhere, other, one)
    await asyncio.sleep(0.15)
    assert [replica.url for replica in door.gateway._pools["main"].replicas] == [one.url]


async def test_a_key_that_changed_is_sent_from_then_on(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url, pools={"main": {"api_key": "old"}})
    assert (await door.post(CHAT, ASK)).status == 200
    entry = {"replicas": [{"url": scripted_engine.url, "server_name": "vllm.test"}], "api_key": "new"}
    door.gateway._pools.configure({"main": PoolEntry.model_validate(entry)})
    assert (await door.post(CHAT, ASK)).status == 200
    assert [request.header("authorization") for request in scripted_engine.requests] == ["Bearer old", "Bearer new"]
    assert scripted_engine.requests[1].header("host") == f"vllm.test:{scripted_engine.port}"


async def test_no_call_fails_while_replicas_move_under_load(
    open_door: OpenDoor, path: Path, scripted_engines: Engines
) -> None:
    engines = [await scripted_engines() for _ in range(4)]
    listed(path, *engines[:2])
    door = await open_door(pools=pools(path))
    statuses: list[int] = []
    calls: set[asyncio.Task[None]] = set()
    moving = asyncio.create_task(_move(door, path, engines))
    while not moving.done():
        calls.add(asyncio.create_task(_call(door, statuses)))
        await asyncio.sleep(0.005)
    await moving
    await asyncio.gather(*calls)
    assert len(statuses) > 200
    assert set(statuses) == {200}
    assert asked(engines) == len(statuses)  # no call was tried twice
    assert all(len(engine.requests) > 20 for engine in engines)


async def _call(door: Door, statuses: list[int]) -> None:
    statuses.append((await door.post(CHAT, ASK)).status)


async def _move(door: Door, path: Path, engines: list[ScriptedEngine]) -> None:
    """Have each two of the engines in turn, until they have had calls enough."""
    for turn in range(8):
        here = [engines[turn % 4], engines[(turn + 1) % 4]]
        listed(path, *here)
        names = {f"127.0.0.1:{engine.port}" for engine in here}
        await door.until(lambda samples, names=names: there(samples) >= names)  # type: ignore[misc]
        enough = asked(here) + 40
        await until(lambda here=here, enough=enough: asked(here) >= enough)  # type: ignore[misc]


def asked(engines: list[ScriptedEngine]) -> int:
    return sum(len(engine.requests) for engine in engines)
