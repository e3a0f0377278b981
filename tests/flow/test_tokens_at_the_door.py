"""Tokens and headers on raw sockets at a whole gateway: in and out of time, twice, in pieces, beside a hung issuer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest

from gateway.clock import Clock, SystemClock
from gateway.identity.header import MAX_FIELD_BYTES
from gateway.identity.refused import Reason
from tests.authenticating import until
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, error_of
from tests.forgeries import K1 as FORGED_KEY
from tests.forgeries import KEYS, forgeries
from tests.identity_provider import IdentityProvider, SetClock, SigningKey, signing_key
from tests.raw_client import raw_client
from tests.store_server import StoreServer, running_server
from tests.transcripts import LAST_CHUNK, chunked, head, transcript

ISSUER = "https://idp.example"
K1 = signing_key("k1", "ES256")
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}'
STREAMED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"


def call(*fields: bytes) -> bytes:
    """Return a call with exactly these fields besides those of its framing."""
    return HEAD % len(BODY) + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + BODY


async def once(door: Door, *fields: bytes) -> Reply:
    async with raw_client(door.port) as client:
        return await client.ask(call(*fields))


def token(*, lives_s: float = 600, key: SigningKey = K1) -> str:
    return key.token({"iss": ISSUER, "sub": "user-1", "exp": SystemClock().now() + lives_s})


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    async with IdentityProvider() as provider:
        provider.publish(K1)
        yield provider


async def door_to(
    open_door: OpenDoor,
    engine: ScriptedEngine,
    provider: IdentityProvider,
    leeway: str = "0s",
    clock: Clock | None = None,
) -> Door:
    entry = {"issuer": ISSUER, "jwks": provider.jwks, "leeway": leeway}
    door = await open_door(engine.url, auth={"issuers": [entry]}, clock=clock)
    await door.until(lambda samples: samples.total("gateway_key_set_refreshes_total", issuer=ISSUER) == 1)
    return door


async def test_spellings_of_the_header_that_mean_the_same(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    good = door.token().encode()
    for field in (b"authorization: bearer %b", b"AUTHORIZATION:BEARER %b", b"Authorization: \t Bearer %b \t"):
        assert (await once(door, field % good)).status == 200


async def test_what_could_be_read_in_two_ways_is_401(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    good, bad = b"Bearer " + door.token().encode(), b"Bearer a.b.c"
    signature = good.rpartition(b".")[2]
    for fields in (
        (good, bad),
        (bad, good),
        (good, good),
        (good, b""),
        (b"", good),
        (good + b", " + bad,),
        (good + b",",),
        (good + b" " + bad,),
        (good.replace(b" ", b"  "),),
        (good.replace(b" ", b"\t"),),
        (good + b"\xff\xfe",),
        (good + "é".encode(),),
        (b"\xa0" + good,),
        (b"Bearer" + door.token().encode(),),
        (b"Basic " + door.token().encode(),),
        (door.token().encode(),),
    ):
        reply = await once(door, *[b"Authorization: " + field for field in fields])
        code = reply.error["code"]
        error_of(reply, 401, code, "authentication_error")
        assert code in {"missing_token", "invalid_token"}
        assert signature not in reply.body
    for name in (b"X-Authorization", b"Proxy-Authorization", b"Cookie", b"access_token", b"X-Api-Key", b"Api-Key"):
        error_of(await once(door, name + b": " + good), 401, "missing_token", "authentication_error")
    assert scripted_engine.requests == []
    assert not any(signature.decode() in line for line in await door.logged(22))


async def test_a_call_in_the_body_of_one_that_is_refused_never_runs(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    hidden = call(b"Authorization: Bearer " + door.token().encode())
    head = HEAD % len(hidden)
    async with raw_client(door.port) as client:
        for field in (b"", b"Authorization: Basic x\r\n", b"Authorization: Bearer x\r\n"):
            assert (await client.ask(head + field + b"\r\n" + hidden)).status == 401
        assert scripted_engine.requests == []
        assert (await client.ask(hidden)).status == 200
        await client.send(head + b"\r\n")
        assert (await client.answer()).status == 401  # before its body came, which is its body all the same
        assert (await client.ask(hidden + b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")).status == 404
    assert len(scripted_engine.requests) == 1


async def test_a_genuine_token_of_many_kilobytes_is_accepted(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    large = door.token_of(groups="x" * 7000).encode()
    assert 9 * 2**10 < len(large) < MAX_FIELD_BYTES
    assert (await once(door, b"Authorization: Bearer " + large)).status == 200


NO_DATES = ("Infinity", "-Infinity", "NaN", "1e400", "true", "[1]", "null", "9" * 400, "9" * 5000)


async def test_dates_hold_within_the_leeway_and_what_is_no_date_is_401(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, provider: IdentityProvider
) -> None:
    door = await door_to(open_door, scripted_engine, provider, leeway="5s")
    now = int(SystemClock().now())
    dates: list[tuple[dict[str, object], int]] = [
        ({"iat": now + 2, "nbf": now + 2}, 200),
        ({"exp": now - 2}, 200),
        ({"nbf": now + 60}, 401),
        ({"iat": now + 60}, 401),
        ({"exp": now - 10}, 401),
    ]
    dates += [({claim: date}, 401) for claim in ("exp", "nbf", "iat") for date in NO_DATES]
    async with raw_client(door.port) as client:
        for changes, status in dates:
            members = {"iss": f'"{ISSUER}"', "sub": '"user-1"', "exp": now + 600} | changes
            payload = "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"
            bearer = K1.raw('{"alg":"ES256","kid":"k1"}', payload).encode()
            assert (await client.ask(call(b"Authorization: Bearer " + bearer))).status == status, changes
    assert len(scripted_engine.requests) == 2


async def test_a_token_beyond_the_limit_is_refused_with_its_connection_and_never_echoed(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    for size in (MAX_FIELD_BYTES + 1, 70_000):
        async with raw_client(door.port) as client:
            reply = await client.ask(call(b"Authorization: Bearer " + b"a" * size))
            error_of(reply, 400, "invalid_value", BAD_REQUEST)
            assert reply.headers["Connection"] == "close"
            assert b"a" * 8 not in reply.body
            assert not any("a" * 8 in line for line in door.lines)


async def test_a_token_ends_within_a_connection_and_not_within_a_stream(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, provider: IdentityProvider
) -> None:
    clock = SetClock(time=SystemClock().now())
    door = await door_to(open_door, scripted_engine, provider, clock=clock)
    short, go = token(lives_s=60), asyncio.Event()
    events = transcript(" a", " b")
    scripted_engine.answer(head(), chunked(events[0]), go, *map(chunked, events[1:]), LAST_CHUNK)
    headers = {"Authorization": f"Bearer {short}"}
    async with (
        door.session.post(door.url + CHAT, json=STREAMED, headers=headers) as stream,
        raw_client(door.port) as client,
    ):
        assert stream.status == 200
        field = b"Authorization: Bearer " + short.encode()
        assert (await client.ask(call(field))).status == 200
        clock.advance(90)
        error_of(await client.ask(call(field)), 401, "expired_token", "authentication_error")
        go.set()
        assert await stream.read() == b"".join(events)


async def test_strangers_beside_a_hung_issuer_delay_nobody(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, provider: IdentityProvider
) -> None:
    door = await door_to(open_door, scripted_engine, provider)
    provider.hang()
    unknown = [token(key=SigningKey(f"random-{serial}", "ES256", K1.private)) for serial in range(20)]
    async with aiohttp.ClientSession() as strangers:
        sent = [
            asyncio.create_task(strangers.get(door.url + "/v1/models", headers={"Authorization": f"Bearer {one}"}))
            for one in unknown
        ]
        await until(lambda: provider.at_once == 1)
        for _ in range(10):
            assert (await door.get("/v1/models", token=token())).status == 200
            assert (await door.get_admin("/livez")).status == 200
        assert not any(one.done() for one in sent)
        provider.answer()
        assert {(await one).status for one in sent} == {401}
    assert provider.most_at_once == 1
    assert provider.hits == 2
    samples = await door.metrics()
    assert samples.total("gateway_auth_failures_total", reason="key") == 20
    assert samples.total("gateway_key_set_age_seconds", issuer=ISSUER) < 5


@pytest.fixture
def store() -> Iterator[StoreServer]:
    with running_server() as server:
        yield server


async def test_no_forgery_reaches_an_engine_or_leaves_a_trace_in_the_store(
    store: StoreServer, open_door: OpenDoor, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_text(KEYS)
    entry = {"issuer": ISSUER, "jwks": str(tmp_path / "keys.json"), "algorithms": ["RS256"], "audience": "gw"}
    rule = {"name": "few", "per": ["key"], "requests": 2, "window": "1h"}
    limits = {"store": store.url, "store_timeout": "10s", "journal": str(tmp_path), "plans": {"standard": [rule]}}
    door = await open_door(scripted_engine.url, auth={"issuers": [entry]}, limits=limits)
    now = int(SystemClock().now())
    claims = {"iss": ISSUER, "aud": ["other", "gw"], "sub": "user-1", "exp": now + 600}
    answers = set()
    async with raw_client(door.port) as client:
        for forge in forgeries(claims).values():
            reply = await client.ask(call(b"Authorization: Bearer " + forge().encode("utf-8", "surrogateescape")))
            answers.add(
                (error_of(reply, 401, "invalid_token", "authentication_error"), reply.headers["WWW-Authenticate"])
            )
        assert len(answers) == 1
        assert scripted_engine.requests == []
        samples = await door.metrics()
        assert samples.total("gateway_auth_failures_total") == len(forgeries(claims))
        for refusal in samples.labels("gateway_auth_failures_total"):
            assert refusal["reason"] in get_args(Reason)
        with store.client() as client_of_store:
            assert client_of_store.keys("*{*") == []  # what is anybody's has a hash tag
        good = await client.ask(call(b"Authorization: Bearer " + FORGED_KEY.token(claims).encode()))
        with store.client() as client_of_store:
            assert client_of_store.keys("*{*") != []
    assert (good.status, good.headers["x-ratelimit-remaining-requests"]) == (200, "1")
