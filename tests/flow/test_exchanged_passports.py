"""What a passport must be that came in exchange, which bearers are exchanged, and what a rotation of keys does."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.authenticating import exchanging
from tests.identity_provider import SetClock, SigningKey, signing_key
from tests.identity_service import IdentityService

AUTH0 = "https://tenant.eu.auth0.com/"


@pytest.fixture
async def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def service(clock: SetClock) -> AsyncIterator[IdentityService]:
    async with IdentityService(clock=clock) as service:
        yield service


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"typ": None}, "required_claim"),
        ({"typ": "access"}, "required_claim"),
        ({"sub": "a\0b", "org_ids": ["o"]}, "principal"),
        ({"iss": "uni-identity2"}, "identity_unavailable"),
        ({"iss": None}, "identity_unavailable"),
        ({"aud": ["inference"]}, "identity_unavailable"),
        ({"exp": None}, "required_claim"),
        ({"exp": 1_700_000_000}, "identity_unavailable"),
        ({"exp": "tomorrow"}, "identity_unavailable"),
        ({"nbf": 1_900_000_000}, "identity_unavailable"),
        ({"iat": 1_900_000_000}, "identity_unavailable"),
    ],
)
async def test_a_passport_is_verified_like_any_token(
    service: IdentityService, changes: dict[str, Any], expected: str
) -> None:
    service.changes = changes
    async with exchanging(service) as gw:
        assert await gw.outcome(service.issue()) == expected


async def test_a_passport_without_the_audience_that_was_asked_for_is_the_services_fault(
    service: IdentityService,
) -> None:
    service.changes = {"aud": None}
    async with exchanging(service, audience="inference") as gw:
        assert await gw.outcome(service.issue()) == "identity_unavailable"


async def test_who_answers_in_the_services_place_without_its_key_opens_no_door(service: IdentityService) -> None:
    forged = SigningKey("key-1", "ES512", signing_key("attacker", "ES512").private)
    now = service.clock.now()
    claims = {"iss": "uni-identity", "typ": "passport", "sub": "root", "exp": now + 60}
    async with exchanging(service) as gw:
        for passport in (forged.token(claims), forged.token(claims, alg="none"), forged.token(claims, alg="HS256")):
            service.says = (200, json.dumps({"access_token": passport}))
            assert await gw.outcome(service.issue()) == "identity_unavailable"


async def test_a_passport_of_a_new_key_is_good_at_once_whatever_floods(
    service: IdentityService, clock: SetClock
) -> None:
    async with exchanging(service) as gw:
        await gw.call(service.issue())
        for serial in range(3):
            service.rotate()
            unknown = SigningKey(f"random-{serial}", "ES512", signing_key("attacker", "ES512").private)
            forged = unknown.token({"iss": "uni-identity", "typ": "passport", "sub": "x", "exp": clock.now() + 60})
            assert await gw.outcome(forged) == "key"
            clock.advance(1.0)
            assert await gw.outcome(service.issue()) == "sa-1"
    assert service.key_sets <= 1 + 2 * 3


async def test_a_key_that_is_used_before_it_is_published_is_asked_for_once_a_second(
    service: IdentityService, clock: SetClock
) -> None:
    async with exchanging(service) as gw:
        await gw.call(service.issue())
        service.publishes = False
        service.rotate()
        clock.advance(1.0)
        for _ in range(20):
            assert await gw.outcome(service.issue()) == "identity_unavailable"
        assert service.key_sets == 2
        service.publish()
        clock.advance(1.0)
        assert await gw.outcome(service.issue()) == "sa-1"


async def test_a_passport_falls_with_its_key(service: IdentityService, clock: SetClock) -> None:
    bearer, other = service.issue(), service.issue("sa-2")
    async with exchanging(service) as gw:
        await gw.call(bearer)
        service.rotate()
        clock.advance(1.0)
        await gw.call(other)
        assert gw.call_at_once(bearer).key == "sa-1"  # the previous key is still published: not asked again
        assert service.asked[bearer] == 1
        service.rotate()
        clock.advance(1.0)
        assert await gw.outcome(service.issue("sa-3")) == "sa-3"
        service.changes = {"sub": "anew"}
        assert await gw.outcome(bearer) == "anew"
        assert gw.call_at_once(other).key == "sa-2"


async def test_what_is_signed_is_verified_here_unless_its_issuer_is_named(service: IdentityService) -> None:
    auth0 = signing_key("auth0")
    foreign = auth0.token({"iss": AUTH0, "sub": "auth0|1", "exp": service.clock.now() + 60})
    account = service.account(service.issue())
    async with exchanging(service) as gw:
        assert await gw.outcome(service.passport(account)) == "sa-1"
        assert await gw.outcome(service.id_token()) == "issuer"
        assert await gw.outcome(foreign) == "issuer"
        assert service.forms == []
    async with exchanging(service, issuers=(AUTH0,)) as gw:
        service.live[foreign] = account
        service.says = (200, json.dumps({"access_token": service.passport(account)}))
        assert await gw.outcome(foreign) == "sa-1"
        assert service.forms[0]["subject_token"] == foreign


@pytest.mark.parametrize(("forms", "expected"), [(("encrypted",), "malformed"), (("opaque",), "inactive")])
async def test_only_forms_that_are_configured_are_asked_about(
    service: IdentityService, forms: tuple[str, ...], expected: str
) -> None:
    async with exchanging(service, forms=forms) as gw:
        assert await gw.outcome("opaque-0123.~+/=") == expected
        assert await gw.outcome(service.issue()) == ("sa-1" if forms == ("encrypted",) else "malformed")
        for malformed in ("a=b", "a b", "eyJlbmMiOiIifQ.a.b.c", "eyJlbmMiOiIifQ.a.b.c.d.e", "{}", "é"):
            assert await gw.outcome(malformed) in {"malformed", "header"}
    assert "a=b" not in service.asked
