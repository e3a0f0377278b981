"""What clients and operators see of tokens that their issuer judges, and of odd names in tokens: the whole gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.clock import SystemClock
from tests.authenticating import until
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.envelope import SERVER_ERROR, error_of
from tests.identity_provider import IdentityProvider, signing_key
from tests.identity_service import IdentityService, stranger

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def service() -> AsyncIterator[IdentityService]:
    async with IdentityService() as service:
        yield service


async def door_to(
    open_door: OpenDoor, engine: ScriptedEngine, service: IdentityService, *, may_take: str = "20s", **sections: Any
) -> Door:
    exchange = {
        "issuer": "uni-identity",
        "jwks": service.jwks,
        "algorithms": ["ES512"],
        "require": {"typ": "passport"},
        "exchange": {"url": service.token_url, "timeout": may_take},
    }
    return await open_door(engine.url, auth={"issuers": [exchange]}, **sections)


async def test_a_refused_token_looks_like_any_other(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    door = await door_to(open_door, scripted_engine, service)
    replies = [await door.post(CHAT, ASK, token=token) for token in (stranger(), "garbage", service.id_token())]
    messages = {error_of(reply, 401, "invalid_token", "authentication_error") for reply in replies}
    assert len(messages) == 1
    assert {reply.headers["WWW-Authenticate"] for reply in replies} == {
        f'Bearer error="invalid_token", error_description="{messages.pop()}"'
    }
    assert scripted_engine.requests == []
    samples = await door.metrics()
    assert samples.total("gateway_auth_failures_total", reason="inactive") == 2
    assert samples.total("gateway_auth_failures_total", reason="issuer") == 1


@pytest.mark.parametrize("trouble", ["hangs", "is down", "fails", "is overloaded"])
async def test_an_identity_service_that_cannot_be_asked_is_503(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService, trouble: str
) -> None:
    # The known token is to be exchanged in that time, however busy the machine is.
    door = await door_to(open_door, scripted_engine, service, may_take="2s" if trouble == "hangs" else "20s")
    known = service.issue("known")
    assert (await door.post(CHAT, ASK, token=known)).status == 200
    if trouble == "hangs":
        service.hang()
    elif trouble == "is down":
        await service.down()
    else:
        service.says = (500, "canary") if trouble == "fails" else (429, "canary")
    reply = await door.post(CHAT, ASK, token=service.issue())
    message = error_of(reply, 503, "identity_unavailable", SERVER_ERROR)
    assert not {"canary", "127.0.0.1", str(service.token_url)} & set(message.split())
    assert (await door.post(CHAT, ASK, token=known)).status == 200
    assert (await door.get("/v1/models", token=known)).status == 200
    samples = await door.metrics()
    assert samples.total("gateway_identity_seconds_count", issuer="uni-identity", result="failed") == 1
    assert samples.total("gateway_identity_seconds_count", issuer="uni-identity", result="ok") == 1
    assert samples.total("gateway_auth_failures_total") == 0


async def test_a_service_that_hangs_holds_up_nothing_else_that_is_asked(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    key = signing_key("k1", "ES256")
    async with IdentityProvider() as other:
        exchange = {"url": service.token_url, "concurrency": 160}
        issuers = [
            {"issuer": "uni-identity", "jwks": service.jwks, "exchange": exchange},
            {"issuer": "https://other", "jwks": other.jwks},
        ]
        door = await open_door(scripted_engine.url, auth={"issuers": issuers})
        await door.until(lambda samples: samples.total("gateway_key_set_refreshes_total", result="ok") == 3)
        service.hang()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as clients:
            headers = [{"Authorization": f"Bearer {stranger(serial)}"} for serial in range(120)]
            waiting = [asyncio.create_task(clients.get(door.url + "/v1/models", headers=one)) for one in headers]
            await until(lambda: service.at_once >= 100)
            other.publish(key)
            good = key.token({"iss": "https://other", "sub": "u", "exp": SystemClock().now() + 60})
            assert (await door.post(CHAT, ASK, token=good)).status == 200
            await until(lambda: service.at_once == 120)
            service.answer()
            assert {(await one).status for one in waiting} == {401}


async def test_no_cookie_of_one_caller_comes_with_the_next_ones(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    # By name: an address is no domain that a cookie could be kept for.
    url = service.userinfo_url.replace("127.0.0.1", "localhost")
    asked = {"issuer": "idp", "introspection": {"url": url, "answer": "userinfo"}}
    door = await open_door(scripted_engine.url, auth={"issuers": [asked]})
    service.says, service.headers = (200, '{"sub": "u"}'), {"Set-Cookie": "session=first; Path=/"}
    for serial in range(3):
        assert (await door.post(CHAT, ASK, token=stranger(serial))).status == 200
    assert service.cookies == [""] * 3


@pytest.mark.parametrize(
    "subject",
    [
        "{tag}:*",
        "a b",
        'q"\\',
        "%s%n{0}",
        "' OR 1=1 --",
        "josé@exämple.com",
        "名前",
        "../../etc",
        "x" * 256,
        "-",
        "None",
    ],
)
async def test_an_odd_subject_is_a_name_like_any_other_everywhere(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService, subject: str
) -> None:
    limits = {"plans": {"standard": [{"name": "one", "per": ["key"], "requests": 1, "window": "1h"}]}}
    door = await door_to(open_door, scripted_engine, service, limits=limits)
    bearer, other = (
        service.issue(subject, orgs=()),
        service.issue(subject + "!" if len(subject) < 256 else "o", orgs=()),
    )
    assert (await door.post(CHAT, ASK, token=bearer)).status == 200
    assert (await door.post(CHAT, ASK, token=bearer)).status == 429
    assert (await door.post(CHAT, ASK, token=other)).status == 200
    lines = [json.loads(line) for line in await door.logged(3) if '"inference_id"' in line]
    assert [line["key"] for line in lines[:2]] == [subject] * 2
    label = subject if len(subject) <= 200 else "other"
    assert (await door.idle()).total("gateway_requests_total", tenant=label, status="200") == 1
    usage = (await door.get("/v1/usage?group_by=key", token=bearer)).json()
    assert [row["key"] for row in usage["data"]] == [subject]


@pytest.mark.parametrize("subject", ["a\0b", "a\nb", "\u202egpj.exe", "x" * 257, "x" * 7000, "", " \t"])
async def test_a_subject_that_is_no_name_is_401(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService, subject: str
) -> None:
    door = await door_to(open_door, scripted_engine, service)
    reply = await door.post(CHAT, ASK, token=service.issue(subject, orgs=()))
    assert "genuine" in error_of(reply, 401, "invalid_token", "authentication_error")
    assert scripted_engine.requests == []
    assert all(subject not in line for line in await door.logged(1)) or not subject.strip()


async def test_a_passport_that_not_every_reader_could_read_is_its_issuers_fault(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    door = await door_to(open_door, scripted_engine, service)
    reply = await door.post(CHAT, ASK, token=service.issue("half a character: \ud800", orgs=()))
    error_of(reply, 503, "identity_unavailable", "server_error")
    assert scripted_engine.requests == []
