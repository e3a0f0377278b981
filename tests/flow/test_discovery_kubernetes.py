"""Replicas found in EndpointSlices, by a whole gateway that asks a scripted API server over TLS."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.config import KubernetesEntry, ReplicaEntry
from gateway.routing.discovery.kubernetes import KubernetesSource
from gateway.routing.discovery.source import Away
from tests.certificates import certified
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Door, OpenDoor, Samples
from tests.engines import ScriptedEngine
from tests.kubernetes_api import KubernetesApi, endpoint, endpoint_slice, kubernetes_api
from tests.transcripts import answer, http

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    account = tmp_path / "account"
    account.mkdir()
    async with kubernetes_api(account) as api:
        yield api


def pods(engine: ScriptedEngine, *numbers: int, name: str = "a", **conditions: bool | None) -> dict[str, Any]:
    endpoints = [endpoint(f"127.0.0.{number}", uid=f"pod-{number}", **conditions) for number in numbers]
    return endpoint_slice(name, *endpoints, ports=[("metrics", 9), ("http", engine.port)])


def found_by(api: KubernetesApi) -> dict[str, Any]:
    return {"main": {"discovery": api.discovery(port="http")}}


def there(samples: Samples) -> set[str]:
    return {labels["replica"].partition(":")[0] for labels in samples.labels("gateway_replica_up")}


async def refreshed(door: Door, result: str, more: int = 1) -> None:
    def count(samples: Samples) -> float:
        return samples.total("gateway_discovery_refreshes_total", pool="main", result=result)

    before = count(await door.metrics())
    await door.until(lambda samples: count(samples) >= before + more)


async def test_pods_are_replicas_from_the_first_call_on_and_the_moment_they_are_told_of(
    open_door: OpenDoor, api: KubernetesApi, scripted_engine: ScriptedEngine
) -> None:
    api.slices["a"] = pods(scripted_engine, 1)
    door = await open_door(pools=found_by(api))
    assert (await door.post(CHAT, ASK)).status == 200
    await api.watched()
    assert api.asked[0] == {"labelSelector": "kubernetes.io/service-name=vllm"}
    assert api.asked[1] == {
        "labelSelector": "kubernetes.io/service-name=vllm",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "1",
        "timeoutSeconds": "60",
    }
    await api.tell("MODIFIED", pods(scripted_engine, 1, 2))
    await door.until(lambda samples: there(samples) == {"127.0.0.1", "127.0.0.2"})
    await api.tell("ADDED", pods(scripted_engine, 3, name="b"))
    await door.until(lambda samples: there(samples) == {"127.0.0.1", "127.0.0.2", "127.0.0.3"})
    await api.tell("MODIFIED", pods(scripted_engine, 1, 2, ready=False, serving=True, terminating=True))
    await door.until(lambda samples: there(samples) == {"127.0.0.3"})
    await api.tell("DELETED", pods(scripted_engine, 3, name="b"))
    await door.until(lambda samples: there(samples) == set())


async def test_a_call_at_a_pod_that_begins_to_end_ends_in_its_own_time(
    open_door: OpenDoor, api: KubernetesApi, scripted_engine: ScriptedEngine
) -> None:
    gate = asyncio.Event()
    api.slices["a"] = pods(scripted_engine, 1)
    door = await open_door(pools=found_by(api))
    await api.watched()
    scripted_engine.answer(gate, http(answer("chat", " Hello")))
    call = asyncio.create_task(door.post(CHAT, ASK))
    await scripted_engine.asked()
    await api.tell("MODIFIED", pods(scripted_engine, 1, ready=False, terminating=True))
    await refreshed(door, "changed", more=0)
    await door.until(lambda _: not door.gateway._pools["main"].replicas)
    gate.set()
    assert (await call).status == 200


@pytest.mark.parametrize("piece", [1, 7, 0])
async def test_events_come_whole_wherever_they_are_cut(
    open_door: OpenDoor, api: KubernetesApi, scripted_engine: ScriptedEngine, piece: int
) -> None:
    api.piece = piece
    door = await open_door(pools=found_by(api))
    await api.watched()
    await api.tell("ADDED", pods(scripted_engine, 1))
    await api.tell("BOOKMARK", {"metadata": {"name": "", "resourceVersion": "0"}})
    await door.until(lambda samples: there(samples) == {"127.0.0.1"})


@pytest.mark.parametrize("trouble", ["list", "garbage", "an event", "401"])
async def test_a_server_in_trouble_changes_nothing_and_is_asked_again(
    open_door: OpenDoor,
    api: KubernetesApi,
    scripted_engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    api.slices["a"] = pods(scripted_engine, 1)
    door = await open_door(pools=found_by(api))
    await api.watched()
    if trouble == "list":
        api.instead["list"] = web.Response(status=500)
    elif trouble == "garbage":
        api.instead["list"] = web.Response(body=b"<html>")
    elif trouble == "401":
        api.tokens = {"second"}
    api.slices["a"] = pods(scripted_engine, 2)
    await api.say(b'{"type":"ERROR","object":{"code":500}}\n' if trouble != "an event" else b"{garbage\n")
    await door.until(lambda samples: samples.total("gateway_discovery_refreshes_total", result="failed") >= 1)
    if trouble != "an event":  # after which a list is asked for, and answered
        await refreshed(door, "failed")
        assert there(await door.metrics()) == {"127.0.0.1"}
        assert (await door.post(CHAT, ASK)).status == 200
    assert "what was found last holds" in caplog.text
    api.instead.clear()
    if trouble == "401":
        (api.directory / "token").write_text("second")
    await door.until(lambda samples: there(samples) == {"127.0.0.2"})
    assert "first" not in caplog.text


# The source by itself, whose watches can be made short.


class Told:
    """What a source told."""

    def __init__(self) -> None:
        self.answers: list[set[str]] = []

    def take(self, found: Sequence[ReplicaEntry]) -> None:
        self.answers.append({entry.url for entry in found})

    async def until(self, *urls: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.answers or self.answers[-1] != {*urls}:
                await asyncio.sleep(0.005)


@pytest.fixture
async def told(api: KubernetesApi) -> AsyncIterator[Told]:
    told = Told()
    async with aiohttp.ClientSession() as session:
        entry = KubernetesEntry(service="vllm", api=api.url, service_account=str(api.directory))
        source = KubernetesSource(entry, session, random.Random(1), watch_s=2)
        task = asyncio.create_task(source.follow(told.take))
        yield told
        task.cancel()
        await asyncio.wait({task})


async def test_a_watch_that_ends_goes_on_where_it_ended_without_a_list(api: KubernetesApi, told: Told) -> None:
    await api.watched()
    await api.tell("BOOKMARK", {"metadata": {"name": "", "resourceVersion": "0"}})
    await api.tell("ADDED", endpoint_slice("a", endpoint("10.0.0.1")))
    await told.until("http://10.0.0.1:8000")
    api.end_watches()
    async with asyncio.timeout(DEADLINE_S):
        while len(api.asked) < 3:
            await asyncio.sleep(0.005)
    assert [asked.get("resourceVersion") for asked in api.asked] == [None, "1", "3"]
    assert told.answers[-1] == {"http://10.0.0.1:8000"}


@pytest.mark.parametrize("how", ["status", "event"])
async def test_what_the_server_forgot_is_listed_anew(api: KubernetesApi, told: Told, how: str) -> None:
    await api.watched()
    api.slices["a"] = endpoint_slice("a", endpoint("10.0.0.1"))
    if how == "status":
        api.instead["watch"] = web.Response(status=410)
        api.end_watches()
    else:
        await api.say(b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n')
    await told.until("http://10.0.0.1:8000")
    assert sum("watch" not in asked for asked in api.asked) >= 2


@pytest.mark.parametrize("what", ["list", "watch"])
async def test_a_server_that_says_nothing_is_given_up(api: KubernetesApi, what: str) -> None:
    api.silent = what == "list"
    entry = KubernetesEntry(service="vllm", api=api.url, service_account=str(api.directory))
    async with aiohttp.ClientSession() as session, asyncio.timeout(DEADLINE_S):
        source = KubernetesSource(entry, session, random.Random(1), watch_s=0.05, grace_s=1.5)
        with pytest.raises(Away, match="does not answer"):
            await source.follow(Told().take)
    assert len(api.asked) == (1 if what == "list" else 2)


async def test_an_account_that_is_not_mounted_is_named(
    open_door: OpenDoor, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread((api.directory / "token").unlink)
    door = await open_door(pools=found_by(api))
    assert "token cannot be read: No such file or directory; is a service account's token mounted?" in caplog.text
    assert (await door.get_admin("/readyz")).status == 503


async def test_a_server_that_nobody_vouches_for_is_not_told_the_token(
    open_door: OpenDoor, api: KubernetesApi, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (api.directory / "ca.crt").write_bytes(certified(tmp_path / "other")[1].read_bytes())
    door = await open_door(pools=found_by(api))
    await refreshed(door, "failed")
    assert api.asked == []
