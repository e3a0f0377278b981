"""Configs of running gateways: changed on disk by a test, read again, and what came of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import yaml

from tests.deadlines import DEADLINE_S
from tests.doors import Door

Change = Callable[[dict[str, Any]], object]


def rewrite(door: Door, change: Change) -> None:
    """Change the config on disk, and nothing else yet."""
    settings = yaml.safe_load(door.path.read_text())
    change(settings)
    door.path.write_text(yaml.safe_dump(settings, sort_keys=False))


async def reload(door: Door, change: Change = lambda _settings: None) -> list[str]:
    """Change the config and have it read again. Return the problems, none where it holds now."""
    rewrite(door, change)
    return await read_again(door)


async def read_again(door: Door) -> list[str]:
    """Have the config read again; return the problems."""
    before = (await door.metrics()).total("gateway_config_reloads_total")
    door.gateway.reload()
    async with asyncio.timeout(DEADLINE_S):
        while (await door.metrics()).total("gateway_config_reloads_total") == before:
            await asyncio.sleep(0.005)
    problems: list[str] = (await active(door))["last_reload"]["problems"]
    return problems


async def active(door: Door) -> dict[str, Any]:
    """Return what operators are told of the config."""
    told: dict[str, Any] = (await door.get_admin("/admin/config")).json()
    return told


def put(path: str, value: Any) -> Change:
    """Return a change that puts `value` where `path`, such as `pools/main/attempts`, leads."""
    *way, last = path.split("/")

    def change(settings: dict[str, Any]) -> None:
        for step in way:
            settings = settings.setdefault(step, {})
        settings[last] = value

    return change


def put_all(sections: dict[str, Any]) -> Change:
    """Return a change that puts these sections in place of those that there are."""
    return lambda settings: settings.update(sections)
