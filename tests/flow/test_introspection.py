"""Tokens about which their issuer is asked (RFC 7662, or UserInfo): what it says holds a while, and only that while."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from pydantic import SecretStr

from gateway import config
from gateway.identity.principal import Principal
from tests.authenticating import Stage, authenticating, until
from tests.identity_provider import SetClock, signing_key
from tests.identity_service import IdentityService, stranger


@pytest.fixture
async def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def service(clock: SetClock) -> AsyncIterator[IdentityService]:
    async with IdentityService(clock=clock) as service:
        yield service


def introspecting(
    service: IdentityService, *, audience: str | None = None, require: dict[str, str] | None = None, **settings: Any
) -> AbstractAsyncContextManager[Stage]:
    entry: dict[str, Any] = {
        "issuer": service.issuer,
        "audience": audience,
        "require": require or {},
        "introspection": {"url": service.introspection_url, **settings},
    }
    return authenticating(config.Issuer(**entry), clock=service.clock)


def asking_userinfo(service: IdentityService, **settings: Any) -> AbstractAsyncContextManager[Stage]:
    entry: dict[str, Any] = {
        "issuer": service.issuer,
        "claims": {"tenant": '"https://unikorn-cloud.org/authz".orgIds[0] || sub'},
        "introspection": {"url": service.userinfo_url, "answer": "userinfo", **settings},
    }
    return authenticating(config.Issuer(**entry), clock=service.clock)


async def test_an_active_token_names_who_its_issuer_says(service: IdentityService) -> None:
    bearer = service.issue("sa-7")
    service.client = ("gateway", "secret")
    async with introspecting(service, client_id="gateway", client_secret=SecretStr("secret")) as gw:
        assert await gw.call(bearer) == Principal("org-1", "sa-7")
        assert gw.call_at_once(bearer) == Principal("org-1", "sa-7")
    assert service.forms == [{"token": bearer, "token_type_hint": "access_token"}]


async def test_userinfo_is_asked_as_the_bearer(service: IdentityService) -> None:
    bearer = service.issue("user@example.com", acctype="user", orgs=("org-5",))
    async with asking_userinfo(service) as gw:
        assert await gw.call(bearer) == Principal("org-5", "user@example.com")
        assert await gw.outcome(stranger()) == "inactive"
    assert service.asked == {bearer: 1, stranger(): 1}


async def test_what_was_said_holds_for_the_cache_and_is_asked_again_ahead(
    service: IdentityService, clock: SetClock
) -> None:
    bearer = service.issue()
    async with introspecting(service, cache="30s") as gw:
        await gw.call(bearer)
        clock.advance(20.0)
        assert gw.call_at_once(bearer).key == "sa-1"
        assert service.asked[bearer] == 1
        clock.advance(1.5)
        assert gw.call_at_once(bearer).key == "sa-1"
        await until(lambda: gw.questions == ["ok", "ok"])
        service.revoke(bearer)
        clock.advance(30.0)
        assert await gw.outcome(bearer) == "inactive"


async def test_an_outage_lets_nobody_in_beyond_the_cache(service: IdentityService, clock: SetClock) -> None:
    bearer = service.issue()
    async with introspecting(service, cache="30s") as gw:
        await gw.call(bearer)
        service.says = (503, "")
        for _ in range(29):
            clock.advance(1.0)
            assert await gw.outcome(bearer) == "sa-1"
        clock.advance(1.0)
        assert await gw.outcome(bearer) == "identity_unavailable"
        service.says = None
        assert await gw.outcome(bearer) == "sa-1"


async def test_the_tokens_own_end_bounds_the_cache(service: IdentityService, clock: SetClock) -> None:
    bearer = service.issue(lives_s=8)
    async with introspecting(service, cache="30s") as gw:
        await gw.call(bearer)
        service.says = (503, "")
        clock.advance(12.9)  # within the leeway
        assert await gw.outcome(bearer) == "sa-1"
        clock.advance(0.2)
        assert await gw.outcome(bearer) == "identity_unavailable"


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"exp": None}, {}, "sa-1"),
        ({"iss": None}, {}, "sa-1"),
        ({"active": False}, {}, "inactive"),
        ({"active": "true"}, {}, "identity_unavailable"),
        ({"active": None}, {}, "identity_unavailable"),
        ({"iss": "https://other"}, {}, "issuer"),
        ({"aud": "gw"}, {}, "audience"),
        ({"aud": ["other", "gw"]}, {"audience": "gw"}, "sa-1"),
        ({"aud": ["other", ["gw"]]}, {"audience": "gw"}, "audience"),
        ({"aud": "gw2"}, {"audience": "gw"}, "audience"),
        ({}, {"audience": "gw"}, "audience"),
        ({"scope": "inference"}, {"require": {"scope": "inference"}}, "sa-1"),
        ({}, {"require": {"scope": "inference"}}, "required_claim"),
        ({"exp": 1_700_000_000}, {}, "expired_token"),
        ({"exp": "soon"}, {}, "malformed"),
        ({"nbf": 1_900_000_000}, {}, "not_yet_valid"),
        ({"sub": None}, {}, "principal"),
        ({"sub": "a\nb"}, {}, "principal"),
    ],
)
async def test_what_is_said_of_a_token_is_checked_like_a_tokens_own_claims(
    service: IdentityService, changes: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    service.changes = changes
    async with introspecting(service, **settings) as gw:
        bearer = service.issue()
        assert [await gw.outcome(bearer) for _ in range(2)] == [expected] * 2
        assert service.asked[bearer] == (1 if expected != "identity_unavailable" else 2)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, '{"error": "invalid_client"}'),
        (403, ""),
        (429, ""),
        (500, ""),
        (302, ""),
        (200, "<html>"),
        (200, "[true]"),
    ],
)
async def test_an_answer_that_says_nothing_of_the_token_is_the_issuers_failure(
    service: IdentityService, status: int, body: str
) -> None:
    service.says = (status, body)
    async with introspecting(service) as gw:
        assert await gw.outcome(service.issue()) == "identity_unavailable"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, "", "inactive"),
        (403, "", "inactive"),
        (429, "", "identity_unavailable"),
        (500, "", "identity_unavailable"),
        (200, "eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "identity_unavailable"),
        (200, "{}", "identity_unavailable"),
        (200, '{"sub": ""}', "principal"),
    ],
)
async def test_userinfos_refusals(service: IdentityService, status: int, body: str, expected: str) -> None:
    service.says = (status, body)
    async with asking_userinfo(service) as gw:
        assert await gw.outcome(service.issue()) == expected


async def test_the_issuers_own_signed_tokens_are_asked_about_too(service: IdentityService) -> None:
    """Introspection is how an issuer takes back what it signed: verifying the signature alone would miss that."""
    now = service.clock.now()
    signed = signing_key("k1", "ES256").token({"iss": service.issuer, "sub": "u", "exp": now + 60})
    foreign = signing_key("k1", "ES256").token({"iss": "https://other", "sub": "u", "exp": now + 60})
    async with introspecting(service) as gw:
        assert await gw.outcome(signed) == "inactive"
        service.says = (200, json.dumps({"active": True, "sub": "u"}))
        assert await gw.outcome(service.issue()) == "u"
        assert await gw.outcome(foreign) == "issuer"
    assert service.asked[signed] == 1
    assert service.asked[foreign] == 0


async def test_a_stage_that_only_asks_is_ready_at_once(service: IdentityService) -> None:
    async with introspecting(service) as gw:
        assert gw.authenticator.ready
        assert gw.authenticator.key_set_ages() == []
