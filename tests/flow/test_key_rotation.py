"""An issuer changes its keys while calls go on: new keys work and old ones stop in time, and nothing else changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.clock import SystemClock
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.identity_provider import IdentityProvider, SigningKey, signing_key

ISSUER = "https://idp.example"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
OLD, NEXT = signing_key("k1", "ES256"), signing_key("k2", "ES256")
AGAIN = SigningKey("k1", "ES256", signing_key("other", "ES256").private)  # other material under the first key's id
COOLDOWN_S, REFRESH_S = 0.1, 1.0
GRACE_S = 4.0  # of a busy machine

_serial = iter(range(10**9))


def token(key: SigningKey) -> str:
    """Return a token that nobody has seen before."""
    exp = SystemClock().now() + 600
    return key.token({"iss": ISSUER, "sub": "user-1", "exp": exp, "jti": str(next(_serial))})


async def status(door: Door, token: str) -> int:
    return (await door.post(CHAT, ASK, token=token)).status


async def becomes(door: Door, key: SigningKey, wanted: int, *, within_s: float) -> None:
    """Wait until new tokens of a key are answered so: no sooner refused or accepted than the issuer had it so."""
    async with asyncio.timeout(within_s + GRACE_S):
        while await status(door, token(key)) != wanted:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def calling(door: Door, *tokens: str) -> AsyncIterator[set[int]]:
    """Call with each of these tokens over and over meanwhile; yield the statuses of their answers."""
    seen: set[int] = set()
    over = asyncio.Event()

    async def call(token: str) -> None:
        while not over.is_set():
            seen.add(await status(door, token))

    callers = [asyncio.create_task(call(token)) for token in tokens]
    try:
        yield seen
    finally:
        over.set()
        await asyncio.gather(*callers)


async def test_through_a_rotation_calls_are_answered_or_refused_and_nothing_else(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    async with IdentityProvider() as provider:
        provider.publish(OLD)
        times = {"cooldown": f"{COOLDOWN_S * 1000:.0f}ms", "refresh": f"{REFRESH_S:.0f}s"}
        door = await open_door(
            scripted_engine.url, auth={"issuers": [{"issuer": ISSUER, "jwks": provider.jwks, **times}]}
        )
        seen = {key: token(key) for key in (OLD, NEXT)}
        assert await status(door, seen[OLD]) == 200
        async with calling(door, *seen.values()) as statuses:
            assert await status(door, token(NEXT)) == 401
            provider.publish(OLD, NEXT)
            await becomes(door, NEXT, 200, within_s=COOLDOWN_S)
            assert await status(door, token(OLD)) == await status(door, seen[OLD]) == 200
            provider.publish(NEXT)
            await becomes(door, OLD, 401, within_s=REFRESH_S)
            assert await status(door, seen[OLD]) == 401
            provider.publish(NEXT, AGAIN)
            await becomes(door, AGAIN, 200, within_s=COOLDOWN_S)
            assert await status(door, token(OLD)) == await status(door, seen[OLD]) == 401
            assert await status(door, seen[NEXT]) == 200
        assert statuses == {200, 401}
        samples = await door.idle()
    assert {labels["status"] for labels in samples.labels("gateway_requests_total")} == {"200", "401"}
    assert provider.most_at_once == 1
