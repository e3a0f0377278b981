"""Issuers, keys and permissions that change while the gateway serves: no valid token is refused, no other accepted."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, MODEL, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.identity_provider import IdentityProvider, SigningKey, signing_key
from tests.identity_service import IdentityService
from tests.reloading import put, reload, rewrite

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
K1, K2 = signing_key("k1"), signing_key("k2", "ES512")
API_KEY = "sk-test"
API_KEY_SHA256 = hashlib.sha256(API_KEY.encode()).hexdigest()


@pytest.fixture
async def providers() -> AsyncIterator[tuple[IdentityProvider, IdentityProvider]]:
    async with IdentityProvider() as one, IdentityProvider() as other:
        one.publish(K1)
        other.publish(K2)
        yield one, other


def token(key: SigningKey = K1, *, issuer: str = "idp", **claims: Any) -> str:
    return key.token({"iss": issuer, "sub": "user-1", "exp": SystemClock().now() + 600, **claims})


async def status(door: Door, bearer: str) -> int:
    return (await door.post(CHAT, ASK, token=bearer)).status


async def test_another_key_set_takes_the_place_of_one_and_no_valid_token_is_refused_meanwhile(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, providers: tuple[IdentityProvider, IdentityProvider]
) -> None:
    old, new = providers
    stays = {"issuer": "stays", "jwks": old.jwks}
    door = await open_door(scripted_engine.url, auth={"issuers": [{"issuer": "idp", "jwks": old.jwks}, stays]})
    moved, same = token(), token(issuer="stays")
    assert [await status(door, one) for one in (moved, same)] == [200, 200]
    hits = old.hits
    new.hang()
    changing = asyncio.create_task(reload(door, put("auth/issuers", [{"issuer": "idp", "jwks": new.jwks}, stays])))
    while not new.hits:
        assert await status(door, moved) == 200  # until its successor's keys are here
        await asyncio.sleep(0.01)
    assert await status(door, moved) == 200
    new.answer()
    assert await changing == []
    assert await status(door, token(K2)) == 200
    assert await status(door, moved) == 401
    assert await status(door, same) == 200
    assert old.hits == hits  # the other issuer's keys are those that were here


async def test_a_gateway_that_stops_does_not_wait_for_the_keys_of_a_reload(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, providers: tuple[IdentityProvider, IdentityProvider]
) -> None:
    _, hangs = providers
    hangs.delay_s = 60
    door = await open_door(scripted_engine.url)
    rewrite(door, put("auth/issuers", [{"issuer": "idp", "jwks": hangs.jwks}]))
    door.gateway.reload()
    async with asyncio.timeout(DEADLINE_S):
        while not hangs.hits:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(DEADLINE_S):
        await door.gateway.stop()
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not {name for name in left if name.startswith(("config reload", "key set", "retiring"))}, left


async def test_a_key_set_that_cannot_be_had_takes_effect_and_is_told_to_clients_of_that_issuer_alone(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, providers: tuple[IdentityProvider, IdentityProvider]
) -> None:
    old, _ = providers
    door = await open_door(scripted_engine.url, auth={"issuers": [{"issuer": "idp", "jwks": old.jwks}]})
    assert await status(door, token()) == 200
    assert await reload(door, put("auth/issuers", [{"issuer": "idp", "jwks": "http://127.0.0.1:1/jwks"}])) == []
    reply = await door.post(CHAT, ASK, token=token())
    assert (reply.status, reply.error["code"]) == (503, "identity_unavailable")
    assert await status(door, door.token()) == 200


async def test_an_issuer_whose_entry_changes_keeps_its_keys_while_it_is_down(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, providers: tuple[IdentityProvider, IdentityProvider]
) -> None:
    idp, _ = providers
    entry = {"issuer": "idp", "jwks": idp.jwks}
    door = await open_door(scripted_engine.url, auth={"issuers": [entry]})
    robot, human = token(typ="robot"), token(typ="human")
    assert [await status(door, one) for one in (robot, human)] == [200, 200]
    idp.status = 500
    assert await reload(door, put("auth/issuers", [entry | {"require": {"typ": "robot"}}])) == []
    assert [await status(door, one) for one in (robot, human)] == [200, 401]  # judged anew
    assert await reload(door, put("auth/issuers", [entry | {"claims": {"tenant": "typ"}}])) == []
    assert await status(door, human) == 200
    assert (await door.idle()).total("gateway_requests_total", tenant="human", status="200") == 1
    assert await reload(door, put("auth/issuers", [])) == []
    assert await status(door, robot) == 401


async def test_permissions_hold_for_tokens_that_are_remembered_and_revocations_go_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    good, leaked = door.token(), door.token(key="leaked")
    assert [await status(door, one) for one in (good, leaked)] == [200, 200]
    revoked = {"tenant": "acme", "key": "leaked", "reason": "test"}
    async with door.session.put(door.admin_url + "/admin/revocations", json=revoked) as answer:
        assert answer.status == 200
    assert await reload(door, put("auth/tenants", {"acme": {"models": ["none"]}})) == []
    assert [await status(door, one) for one in (good, leaked)] == [404, 401]
    assert await reload(door, put("auth/tenants", {"acme": {"models": [MODEL]}})) == []
    assert [await status(door, one) for one in (good, leaked)] == [200, 401]


async def test_api_keys_come_and_go_with_their_file(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]")
    door = await open_door(scripted_engine.url, auth={"api_keys_file": str(keys)})
    assert await status(door, API_KEY) == 401
    keys.write_text(yaml.safe_dump([{"key": "k", "tenant": "t", "sha256": API_KEY_SHA256}]))
    assert await reload(door) == []
    assert await status(door, API_KEY) == 200
    keys.write_text("[]")
    assert await reload(door) == []
    assert await status(door, API_KEY) == 401


async def test_what_an_issuer_granted_is_not_asked_again_because_something_else_changed(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    async with IdentityService() as service:
        entry = {"issuer": service.issuer, "introspection": {"url": service.introspection_url}}
        door = await open_door(scripted_engine.url, auth={"issuers": [entry]})
        bearer = service.issue()
        assert await status(door, bearer) == 200
        assert await reload(door, put("auth/tenants", {"other": {"models": []}})) == []
        assert await status(door, bearer) == 200
        assert service.asked == {bearer: 1}
        assert await reload(door, put("auth/issuers", [entry | {"require": {"never": True}}])) == []
        assert await status(door, bearer) == 401


async def test_who_waits_for_a_key_while_its_issuer_leaves_still_gets_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, providers: tuple[IdentityProvider, IdentityProvider]
) -> None:
    idp, _ = providers
    door = await open_door(scripted_engine.url, auth={"issuers": [{"issuer": "idp", "jwks": idp.jwks}]})
    assert await status(door, token()) == 200
    idp.hang()
    idp.publish(K1, K2)
    hits = idp.hits
    waiting = asyncio.create_task(status(door, token(K2)))
    while idp.hits == hits:
        await asyncio.sleep(0.01)
    assert await reload(door, put("auth/issuers", [])) == []
    idp.answer()
    assert await waiting == 200
    assert await status(door, token(K2)) == 401
