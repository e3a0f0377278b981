"""Who shares a limit, which rules hold for whom, and that a slot is free again however its call ended."""

from typing import Any

import pytest

from tests import slots
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
TWO_MODELS: dict[str, Any] = {
    "models": {
        "acme/big": {"pool": "large", "aliases": ["big"], "served_name": "tiny"},
        "acme/other": {"pool": "main", "served_name": "tiny"},
    }
}
LARGE: dict[str, Any] = {"health": {"interval": "30s"}}


def one(*per: str, **rule: Any) -> dict[str, Any]:
    return {"name": "rule", "per": list(per), "requests": 1, "window": "1h", **rule}


async def door_with(open_door: OpenDoor, engine: ScriptedEngine, rule: dict[str, Any], **limits: Any) -> Door:
    """Open a gateway with three models in two pools, and a plan of one rule."""
    return await open_door(
        engine.url,
        **TWO_MODELS,
        pools={"large": {"replicas": [engine.url], **LARGE}},
        limits={"plans": {"standard": [rule]}, **limits},
    )


async def admitted(door: Door, *, model: str = "tiny", **who: Any) -> bool:
    reply = await door.post(CHAT, ASK | {"model": model}, token=door.token(**who))
    assert reply.status in {200, 429}
    return reply.status == 200


@pytest.mark.parametrize(
    ("per", "apart"),
    [
        ((), []),
        (("key",), [{"key": "key-2"}, {"tenant": "other"}]),
        (("tenant",), [{"tenant": "other"}]),
        (("model",), [{"model": "big"}, {"model": "acme/other"}]),
        (("pool",), [{"model": "big"}]),
        (("key", "model"), [{"key": "key-2"}, {"tenant": "other"}, {"model": "big"}, {"model": "acme/other"}]),
        (("tenant", "pool"), [{"tenant": "other"}, {"model": "big"}]),
    ],
)
async def test_a_limit_is_shared_by_whatever_its_rule_does_not_name(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, per: tuple[str, ...], apart: list[dict[str, str]]
) -> None:
    door = await door_with(open_door, scripted_engine, one(*per))
    others = [{"key": "key-2"}, {"tenant": "other"}, {"model": "big"}, {"model": "acme/other"}]
    assert await admitted(door)
    assert not await admitted(door)
    assert [other for other in others if await admitted(door, **other)] == [other for other in others if other in apart]


async def test_an_alias_and_its_model_share_a_limit(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await door_with(open_door, scripted_engine, one("model"))
    assert await admitted(door, model="tiny")
    assert not await admitted(door, model="acme/tiny")


async def test_equal_keys_of_two_tenants_are_two(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await door_with(open_door, scripted_engine, one("key"))
    for tenant in ("a", "b", "a:key-1", "{a}"):
        assert await admitted(door, tenant=tenant, key="key-1")
        assert not await admitted(door, tenant=tenant, key="key-1")


async def test_a_rule_holds_only_for_its_models(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await door_with(open_door, scripted_engine, one("key", models=["acme/b*"]))
    assert await admitted(door, model="big")
    assert not await admitted(door, model="big")
    assert await admitted(door)
    assert await admitted(door)


async def test_a_shadow_counts_and_never_refuses(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await door_with(open_door, scripted_engine, one("key", shadow=True))
    for _ in range(3):
        assert await admitted(door)
    samples = await door.metrics()
    assert samples.total("gateway_limit_decisions_total", rule="rule", decision="admitted") == 1
    assert samples.total("gateway_limit_decisions_total", rule="rule", decision="shadow") == 2


async def calls_until_refused(door: Door, **who: Any) -> int:
    count = 0
    while await admitted(door, **who):
        count += 1
    return count


async def test_the_plan_is_the_keys_else_the_tenants_else_the_claims_else_the_default(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    plans = {f"of-{count}": [one("key", requests=count)] for count in (1, 2, 3, 4)}
    tenants = {"acme": {"plan": "of-2", "keys": {"vip": {"plan": "of-3"}}}}
    door = await open_door(scripted_engine.url, limits={"plans": plans, "default_plan": "of-1", "tenants": tenants})
    assert await calls_until_refused(door, tenant="acme", key="vip", plan="of-4") == 3
    assert await calls_until_refused(door, tenant="acme", key="k", plan="of-4") == 2
    assert await calls_until_refused(door, tenant="new", key="k", plan="of-4") == 4
    assert await calls_until_refused(door, tenant="new", key="l") == 1
    assert await calls_until_refused(door, tenant="new", key="m", plan="unlimited") == 1
    assert (await door.metrics()).total("gateway_plans_unknown_total") == 2


async def test_entries_override_single_rules(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    tenants = {
        "acme": {"override": {"rule": {"requests": 2}}, "keys": {"vip": {"override": {"rule": {"requests": 3}}}}}
    }
    door = await door_with(open_door, scripted_engine, one("key"), tenants=tenants)
    assert await calls_until_refused(door, tenant="other") == 1
    assert await calls_until_refused(door, tenant="acme", key="k") == 2
    assert await calls_until_refused(door, tenant="acme", key="vip") == 3


@pytest.mark.parametrize("name", slots.ENDINGS)
async def test_a_slot_is_free_again_after_every_ending(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    plans = {"standard": [slots.SLOTS]}
    door = await open_door(
        scripted_engine.url, pools={"main": {"timeouts": slots.timeouts(name)}}, limits={"plans": plans}
    )
    await slots.end(door, scripted_engine, name)
    await slots.exactly_two_run(door, scripted_engine)


@pytest.mark.parametrize("name", slots.LEFT)
async def test_a_slot_is_free_again_after_its_client_left(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [slots.SLOTS]}})
    await slots.leave(door, scripted_engine, name)
    await slots.exactly_two_run(door, scripted_engine)
