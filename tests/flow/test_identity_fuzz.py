"""Any Authorization header at a whole gateway: 200 if it is genuine, 401 if it is not, 400 if it is no HTTP."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.clock import SystemClock
from gateway.identity.header import MAX_FIELD_BYTES
from tests.deadlines import DEADLINE_S
from tests.doors import Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.identity_provider import any_json, b64, key_set, signing_key
from tests.identity_service import IdentityService, stranger
from tests.raw_client import raw_client

BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}).encode()
ISSUER = "https://idp.example"
K1 = signing_key("k1", "ES256")
# What a field's value cannot hold (RFC 9110 section 5.5), tab aside.
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def part(value: object) -> bytes:
    return b64(json.dumps(value).encode()).encode()


json_parts = st.lists(st.one_of(any_json.map(part), st.binary(max_size=20)), min_size=1, max_size=6).map(b".".join)
headers = st.fixed_dictionaries(
    {"alg": st.sampled_from(["none", "ES256", "HS256", "dir"]) | any_json},
    optional={"kid": st.just("k1") | any_json, "enc": any_json, "crit": any_json, "jku": any_json, "zip": any_json},
)
payloads = st.fixed_dictionaries(
    {"iss": st.sampled_from([ISSUER, "uni-identity"]) | any_json}, optional={"exp": any_json, "sub": any_json}
)
unsigned = st.builds(lambda header, payload, rest: b".".join([part(header), part(payload), *rest]), headers, payloads,
                     st.lists(st.binary(max_size=8), max_size=4))  # fmt: skip
schemes = st.sampled_from([b"Bearer ", b"bearer ", b"BEARER  ", b"Bearer\t", b"Basic ", b"Bearer ,", b""])


def spoiled(genuine: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return genuine tokens with some bytes replaced, cut out, or put in."""
    cuts = st.tuples(st.sampled_from(genuine), st.integers(0, 600), st.integers(0, 5), st.binary(max_size=5))
    return cuts.map(lambda cut: cut[0][: cut[1]] + cut[3] + cut[0][cut[1] + cut[2] :])


async def test_any_header_is_answered_in_time_and_as_documented(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_bytes(key_set(K1))
    async with IdentityService() as service:
        exchange = {"url": service.token_url, "timeout": "2s"}
        issuers: list[dict[str, Any]] = [
            {"issuer": ISSUER, "jwks": str(tmp_path / "keys.json")},
            {"issuer": "uni-identity", "jwks": service.jwks, "require": {"typ": "passport"}, "exchange": exchange},
        ]
        door = await open_door(scripted_engine.url, auth={"issuers": issuers})
        bearer = service.issue()
        genuine = [
            bearer.encode(),
            service.passport(service.account(bearer)).encode(),
            K1.token({"iss": ISSUER, "sub": "u", "exp": int(SystemClock().now()) + 600}).encode(),
            door.token().encode(),
        ]
        for token in genuine:
            assert await asked(door, b"Bearer " + token) == 200
        loop = asyncio.get_running_loop()

        def ask(value: bytes) -> int:
            return asyncio.run_coroutine_threadsafe(asked(door, value), loop).result(DEADLINE_S)

        await asyncio.to_thread(fuzz, ask, genuine)
        samples = await door.idle()
        assert samples.total("gateway_requests_total", status="500") == 0
        assert samples.total("gateway_requests_total", status="503") == 0
        assert not any("Traceback" in line for line in door.lines)
        stage = door.gateway._authenticator
        assert len(stage._remembered._entries) <= 2 * len(genuine)
        assert all(not one.grants._questions for one in stage._trust.judges if one.grants is not None)


def fuzz(ask: Callable[[bytes], int], genuine: list[bytes]) -> None:
    tokens = st.one_of(spoiled(genuine), unsigned, json_parts, st.binary(max_size=60), st.just(stranger().encode()))
    long = st.integers(MAX_FIELD_BYTES - 60, MAX_FIELD_BYTES + 60).map(lambda size: b"a" * size)

    @settings(max_examples=400, suppress_health_check=list(HealthCheck))
    @given(schemes, tokens | long)
    def any_header(scheme: bytes, token: bytes) -> None:
        status = ask(scheme + token)
        value = (scheme + token).strip(b" \t")
        if CONTROL.search(value) or len(value) > MAX_FIELD_BYTES - 30:
            assert status in {400, 401}
        elif value[:7].lower() == b"bearer " and value[7:] in genuine:
            assert status == 200
        else:
            assert status == 401

    any_header()


async def asked(door: Door, value: bytes) -> int:
    """Send a call with exactly this value, and return the status of the first answer."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    async with raw_client(door.port) as client:
        return (await client.ask(head % len(BODY) + b"Authorization: " + value + b"\r\n\r\n" + BODY)).status
