"""The `gateway` command's config, changed on disk and by signals while it serves."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doors import CHAT
from tests.engines import ScriptedEngine
from tests.processes import Loop, Processes, Running, until
from tests.store_server import StoreServer

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = BODY | {"stream": True}
RULE = {"name": "calls", "per": ["key"], "requests": 100_000, "window": "1h"}
CALLS, WARM_UP, AT_ONCE = 300, 20, 5
# Connections that calls leave for the next: one to the gateway and one to each of two engines, for each at once.
IDLE = 3 * AT_ONCE
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]


def config_of(processes: Processes, *engines: ScriptedEngine, **sections: Any) -> Path:
    return processes.config(
        models={"tiny": {"pool": "main"}},
        pools={"main": {"replicas": [engine.url for engine in engines]}},
        limits={"plans": {"standard": [RULE]}},
        **sections,
    )


def with_limit(path: Path, figure: int) -> str:
    """Return the config's text with another figure of its rule."""
    settings = yaml.safe_load(path.read_text())
    settings["limits"]["plans"]["standard"][0]["requests"] = figure
    return yaml.safe_dump(settings)


async def reloads(processes: Processes, gateway: Running, result: str, *, more_than: float = 0) -> float:
    """Wait until more reloads than so many have come to that result; return their number."""
    counted = 0.0

    async def enough() -> bool:
        nonlocal counted
        counted = (await gateway.metrics(processes.session)).total("gateway_config_reloads_total", result=result)
        return counted > more_than

    await until(enough)
    return counted


async def limit_told(processes: Processes, gateway: Running, token: str) -> int:
    reply = await processes.post(gateway, CHAT, BODY, token=token)
    assert reply.status == 200, reply.body
    return int(reply.headers["x-ratelimit-limit-requests"])


async def test_sighup_has_the_config_read_again(processes: Processes, scripted_engine: ScriptedEngine) -> None:
    config = config_of(processes, scripted_engine, server={"watch_config": None})
    token = processes.token()
    gateway = await processes.serve(config)
    assert await limit_told(processes, gateway, token) == 100_000
    config.write_text(with_limit(config, 500))
    gateway.send(signal.SIGHUP)
    await reloads(processes, gateway, "ok")
    assert await limit_told(processes, gateway, token) == 500
    config.write_text("pools: [")
    gateway.send(signal.SIGHUP)
    await reloads(processes, gateway, "failed")
    assert await limit_told(processes, gateway, token) == 500
    gateway.send(signal.SIGTERM)
    assert await gateway.ended() == 0
    assert f"config {config} was read again (SIGHUP) and holds; changed: limits.plans.standard" in gateway.log
    assert "cannot hold; the one before stays, nothing has changed: is not YAML" in gateway.log
    assert "Traceback" not in gateway.log


async def test_a_file_that_changes_is_read_again_and_one_that_is_gone_changes_nothing(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    config = config_of(processes, scripted_engine, server={"watch_config": "100ms"})
    token = processes.token()
    gateway = await processes.serve(config)
    text = with_limit(config, 500)
    config.write_text(text)
    await reloads(processes, gateway, "ok")
    assert await limit_told(processes, gateway, token) == 500
    config.unlink()
    assert await reloads(processes, gateway, "failed") == 1
    config.write_text("")
    assert await reloads(processes, gateway, "failed", more_than=1) == 2
    assert await limit_told(processes, gateway, token) == 500
    config.write_text(text)
    await reloads(processes, gateway, "ok", more_than=1)
    samples = await gateway.metrics(processes.session)
    assert samples.total("gateway_config_reload_failed") == 0
    assert samples.total("gateway_config_reloads_total", result="failed") == 2  # once each, however often looked at


async def test_a_directory_that_kubernetes_swaps_is_seen(
    processes: Processes, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A ConfigMap's volume has `config.yaml` -> `..data/config.yaml`, and `..data` -> a directory for each version."""
    config = config_of(processes, scripted_engine, server={"watch_config": "100ms"})
    token = processes.token()
    volume = tmp_path / "volume"
    texts = [config.read_text(), with_limit(config, 500), with_limit(config, 600)]
    for number, text in enumerate(texts):
        (volume / f"..version-{number}").mkdir(parents=True)
        (volume / f"..version-{number}" / "config.yaml").write_text(text)
    swap(volume, 0)
    (volume / "config.yaml").symlink_to("..data/config.yaml")
    config.unlink()
    config.symlink_to(volume / "config.yaml")
    gateway = await processes.serve(config)
    for number, figure in ((1, 500), (2, 600)):
        swap(volume, number)
        await reloads(processes, gateway, "ok", more_than=number - 1)
        assert await limit_told(processes, gateway, token) == figure


def swap(volume: Path, number: int) -> None:
    new = volume / "..data_tmp"
    new.symlink_to(f"..version-{number}")
    new.rename(volume / "..data")


@pytest.mark.parametrize(("loop", "shared"), [("uvloop", False), ("asyncio", True)], ids=["memory", "Redis, asyncio"])
async def test_calls_do_not_notice_that_everything_is_swapped_many_times_a_second(
    processes: Processes, scripted_engines: MoreEngines, store_server: StoreServer, loop: Loop, *, shared: bool
) -> None:
    """By signals and, beside the store, by changes of the file too: one that lasts for two looks is taken on."""
    engines = [await scripted_engines() for _ in range(2)]
    store = {"store": store_server.url, "store_timeout": "5s"} if shared else {}
    config = config_of(processes, *engines, server={"watch_config": "100ms" if shared else None})
    token = processes.token()
    versions = [version(config, engines, number, store) for number in range(4)]
    config.write_text(versions[0])
    gateway = await processes.serve(config, loop=loop)
    for _ in range(WARM_UP):
        await limit_told(processes, gateway, token)
    descriptors, memory = gateway.descriptors, gateway.memory
    stop, places = asyncio.Event(), asyncio.Semaphore(AT_ONCE)

    async def swap_all() -> int:
        swaps = 0
        while not stop.is_set():
            swaps += 1
            put(config, versions[swaps % len(versions)])
            if shared and swaps % 4 == 0:
                await asyncio.sleep(0.3)
            else:
                gateway.send(signal.SIGHUP)
                await asyncio.sleep(0.06)
        return swaps

    async def call(number: int) -> tuple[int, int]:
        await asyncio.sleep(number / 100)
        async with places:
            reply = await processes.post(gateway, CHAT, STREAM if number % 2 else BODY, token=token)
        return reply.status, reply.body.count(b"data: ")

    swapping = asyncio.create_task(swap_all())
    answers = set(await asyncio.gather(*[call(number) for number in range(CALLS)]))
    stop.set()
    swaps = await swapping
    assert len(answers) == 2, answers  # each stream like every other, each whole answer too
    assert {status for status, _ in answers} == {200}
    await reloads(processes, gateway, "ok", more_than=swaps / 2)
    samples = await gateway.metrics(processes.session)
    assert samples.total("gateway_config_reloads_total", result="failed") == 0
    assert samples.total("gateway_requests_total") == samples.total("gateway_requests_total", status="200")
    assert samples.total("gateway_tokens_total", kind="completion", source="engine") == 2 * (CALLS + WARM_UP)
    assert samples.total("gateway_requests_in_flight") == 0
    assert swaps > IDLE
    assert gateway.descriptors <= descriptors + IDLE  # each of the swaps would leave one at least
    assert gateway.memory <= memory + 8 * 2**20
    assert ("its content changed" in gateway.log) == shared
    assert "Traceback" not in gateway.log


def put(config: Path, text: str) -> None:
    """Write a config as those do who change one that is read at any time: whole, or not yet."""
    new = config.with_suffix(".new")
    new.write_text(text)
    new.replace(config)


def version(config: Path, engines: list[ScriptedEngine], number: int, store: dict[str, str]) -> str:
    """Return a config that differs from others in pools, replicas, limits, models and who may use them."""
    settings = yaml.safe_load(config.read_text())
    pool, asked = f"pool-{number % 2}", (engines, engines[:1], engines[1:], engines)[number]
    settings |= {
        "models": {"tiny": {"pool": pool}, f"other-{number}": {"pool": pool}},
        "pools": {pool: {"replicas": [engine.url for engine in asked]}},
        "limits": {"plans": {"standard": [RULE | {"requests": 100_000 + number}]}} | store,
    }
    settings["auth"]["tenants"] = {"zeta": {"models": [f"other-{number}"]}}
    return yaml.safe_dump(settings)


async def test_a_gateway_that_reads_its_config_again_all_the_time_still_stops(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    config = config_of(processes, scripted_engine)
    processes.token()
    gateway = await processes.serve(config)
    for _ in range(50):
        gateway.send(signal.SIGHUP)
    config.unlink()
    os.mkfifo(config)  # which hangs for whoever reads it, as a disk may
    gateway.send(signal.SIGHUP)
    holding: list[int] = []

    async def reads() -> bool:
        with suppress(OSError):  # nobody does
            holding.append(os.open(config, os.O_WRONLY | os.O_NONBLOCK))
        return bool(holding)

    await until(reads)
    gateway.send(signal.SIGTERM)
    gateway.send(signal.SIGHUP)
    assert await gateway.ended() == 0
    os.close(*holding)
    assert "Traceback" not in gateway.log
