"""The identity stage by itself before a stand-in of an identity provider, and what a test asks of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.errors import IdentityUnavailable, Unauthorized
from gateway.identity.authenticate import Authenticator
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from tests.deadlines import DEADLINE_S
from tests.identity_service import PASSPORT, IdentityService


@dataclass
class Stage:
    """An authenticator, and what it told its observers."""

    authenticator: Authenticator
    fetches: list[str]
    questions: list[str]

    async def call(self, token: str) -> Principal:
        return await self.authenticator.authenticate(f"Bearer {token}".encode())

    async def outcome(self, token: str) -> str:
        """Return the key of the principal, or the word for why there is none."""
        return await outcome(self.call(token))

    def call_at_once(self, token: str) -> Principal:
        """Authenticate without a single suspension, or fail."""
        coroutine = self.call(token)
        try:
            coroutine.send(None)
        except StopIteration as done:
            principal: Principal = done.value
            return principal
        finally:
            coroutine.close()
        raise AssertionError("authenticate suspended")


async def outcome(call: Coroutine[Any, Any, Principal]) -> str:
    try:
        return (await call).key
    except (Unauthorized, IdentityUnavailable) as error:
        return reason_of(error) if isinstance(error, Unauthorized) else error.code


@asynccontextmanager
async def authenticating(
    *issuers: config.Issuer, clock: Clock, start: bool = True, fetch_timeout_s: float = 5.0
) -> AsyncIterator[Stage]:
    fetches: list[str] = []
    questions: list[str] = []
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        authenticator = Authenticator(
            config.Auth(issuers=issuers),
            session,
            clock=clock,
            observe=lambda _, result: fetches.append(result),
            asked=lambda _, result, __: questions.append(result),
            fetch_timeout_s=fetch_timeout_s,
        )
        if start:
            authenticator.start()
        try:
            yield Stage(authenticator, fetches, questions)
        finally:
            await authenticator.close()


def exchanging(service: IdentityService, **exchange: Any) -> AbstractAsyncContextManager[Stage]:
    """Return a stage that swaps encrypted tokens for the service's passports, by the service's clock."""
    entry: dict[str, Any] = {
        "issuer": "uni-identity",
        "jwks": service.jwks,
        "algorithms": ("ES512",),
        "audience": exchange.get("audience"),
        "require": {"typ": "passport"},
        "claims": {"key": "sub", "tenant": "org_id || org_ids[0] || sub"},
        "exchange": {"url": service.token_url, "requested_token_type": PASSPORT, **exchange},
    }
    return authenticating(config.Issuer(**entry), clock=service.clock)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)
