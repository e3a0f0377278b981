"""Encrypted bearers swapped for passports at a real token endpoint: what is asked, remembered, renewed and refused."""

import json
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from gateway.errors import IdentityUnavailable
from gateway.identity import grants
from gateway.identity.denied import Denied
from gateway.identity.principal import Principal
from tests.authenticating import Stage, exchanging, until
from tests.identity_provider import SetClock
from tests.identity_service import ACCESS_TOKEN, EXCHANGE, PASSPORT, IdentityService, stranger


@pytest.fixture
async def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def service(clock: SetClock) -> AsyncIterator[IdentityService]:
    async with IdentityService(clock=clock) as service:
        yield service


async def test_a_bearer_is_swapped_once_and_names_who_its_passport_names(service: IdentityService) -> None:
    bearer = service.issue("sa-7", orgs=("org-9",))
    async with exchanging(service) as gw:
        assert await gw.call(bearer) == Principal("org-9", "sa-7")
        assert gw.call_at_once(bearer) == Principal("org-9", "sa-7")
        assert await gw.authenticator.authenticate(f"bEARER {bearer}".encode()) == Principal("org-9", "sa-7")
    assert service.forms == [
        {
            "grant_type": EXCHANGE,
            "subject_token": bearer,
            "subject_token_type": ACCESS_TOKEN,
            "requested_token_type": PASSPORT,
        }
    ]
    assert gw.questions == ["ok"]


async def test_whose_key_is_revoked_is_refused_without_asking_again_and_let_in_when_that_is_undone(
    service: IdentityService,
) -> None:
    bearer, other = service.issue("sa-7", orgs=("org-9",)), service.issue("sa-8", orgs=("org-9",))
    async with exchanging(service) as gw:
        assert [await gw.outcome(token) for token in (bearer, other)] == ["sa-7", "sa-8"]
        gw.authenticator.deny(Denied(keys=frozenset({("org-9", "sa-7")})))
        assert [await gw.outcome(token) for token in (bearer, bearer, other)] == ["revoked", "revoked", "sa-8"]
        assert await gw.outcome(service.issue("sa-7", orgs=("org-9",))) == "revoked"
        assert gw.questions == ["ok"] * 3
        gw.authenticator.deny(Denied())
        assert gw.call_at_once(bearer) == Principal("org-9", "sa-7")


async def test_the_exchange_asks_for_what_is_configured(service: IdentityService) -> None:
    bearer = service.issue("user@example.com", acctype="user", orgs=("org-1", "org-2"))
    scope = {"audience": "inference", "organization": "org-2", "project": "p", "resource": "https://inference/"}
    async with exchanging(service, **scope) as gw:
        assert (await gw.call(bearer)).tenant == "org-2"
    asked = {
        "audience": "inference",
        "resource": "https://inference/",
        "x_organization_id": "org-2",
        "x_project_id": "p",
    }
    assert asked.items() <= service.forms[0].items()


@pytest.mark.parametrize("client_auth", ["basic", "post"])
async def test_the_gateway_shows_its_own_credentials(service: IdentityService, client_auth: str) -> None:
    service.client = ("gate way", "s:cret%") if client_auth == "basic" else None
    bearer = service.issue()
    credentials = {"client_id": "gate way", "client_secret": SecretStr("s:cret%"), "client_auth": client_auth}
    async with exchanging(service, **credentials) as gw:
        assert await gw.outcome(bearer) == "sa-1"
    shown = {name: value for name, value in service.forms[0].items() if name.startswith("client")}
    assert shown == ({} if client_auth == "basic" else {"client_id": "gate way", "client_secret": "s:cret%"})


async def answered(gw: Stage, times: int) -> None:
    await until(lambda: gw.questions == ["ok"] * times)


async def test_a_passport_in_use_is_renewed_ahead_and_nobody_waits(service: IdentityService, clock: SetClock) -> None:
    bearer = service.issue()
    async with exchanging(service) as gw:
        await gw.call(bearer)
        for passports in range(1, 4):
            clock.advance(34.0)
            assert gw.call_at_once(bearer).key == "sa-1"
            assert service.asked[bearer] == passports
            clock.advance(2.0)
            for _ in range(20):
                assert gw.call_at_once(bearer).key == "sa-1"
            await answered(gw, passports + 1)
            clock.advance(0.5)
    assert service.asked[bearer] == 4


async def test_a_passport_is_not_used_in_its_last_ten_seconds(service: IdentityService, clock: SetClock) -> None:
    bearer = service.issue("old")
    async with exchanging(service) as gw:
        await gw.call(bearer)
        service.changes = {"sub": "new"}
        clock.advance(49.9)
        assert gw.call_at_once(bearer).key == "old"
        await until(lambda: gw.questions == ["ok", "ok"])
        service.changes = {"sub": "newer"}
        clock.advance(50.0)
        assert await gw.outcome(bearer) == "newer"


async def test_while_the_service_is_away_a_passport_holds_to_its_end_and_not_beyond(
    service: IdentityService, clock: SetClock
) -> None:
    bearer, other = service.issue(), service.issue("sa-2")
    async with exchanging(service) as gw:
        await gw.call(bearer)
        await service.down()
        for _ in range(59):
            clock.advance(1.0)
            assert await gw.outcome(bearer) == "sa-1"
        assert await gw.outcome(other) == "identity_unavailable"
        clock.advance(1.0)
        assert await gw.outcome(bearer) == "identity_unavailable"
        await service.up()
        assert await gw.outcome(bearer) == "sa-1"
        assert await gw.outcome(other) == "sa-2"
    assert set(gw.questions) == {"ok", "failed"}


async def test_a_bearer_that_is_revoked_is_refused_from_its_renewal_on(
    service: IdentityService, clock: SetClock
) -> None:
    bearer = service.issue()
    async with exchanging(service) as gw:
        await gw.call(bearer)
        service.revoke(bearer)
        clock.advance(36.0)
        assert gw.call_at_once(bearer).key == "sa-1"
        await until(lambda: gw.questions == ["ok", "refused"])
        clock.advance(grants.LOOK_S)
        assert await gw.outcome(bearer) == "inactive"
        service.says = (500, "")  # what it refused, an outage does not bring back
        clock.advance(grants.REFUSED_S)
        assert await gw.outcome(bearer) == "identity_unavailable"


async def test_a_bearer_that_expires_is_good_until_then(service: IdentityService, clock: SetClock) -> None:
    bearer = service.issue(lives_s=20)
    async with exchanging(service) as gw:
        assert await gw.outcome(bearer) == "sa-1"
        clock.advance(9.0)
        assert await gw.outcome(bearer) == "sa-1"
        clock.advance(10.9)
        assert await gw.outcome(bearer) == "sa-1"
        clock.advance(0.1)
        assert await gw.outcome(bearer) == "inactive"


async def test_a_refused_bearer_is_remembered_briefly(service: IdentityService, clock: SetClock) -> None:
    garbage = stranger()
    async with exchanging(service) as gw:
        for _ in range(50):
            assert await gw.outcome(garbage) == "inactive"
        assert service.asked[garbage] == 1
        clock.advance(grants.REFUSED_S)
        assert await gw.outcome(garbage) == "inactive"
    assert service.asked[garbage] == 2


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, '{"error": "access_denied"}', "inactive"),
        (401, "", "inactive"),
        (400, '{"error": "invalid_request"}', "inactive"),
        (400, '{"error": "invalid_grant"}', "inactive"),
        (400, '{"error": "invalid_scope"}', "inactive"),
        (403, '{"error": "access_denied"}', "inactive"),
        (401, '{"error": "invalid_client"}', "identity_unavailable"),
        (400, '{"error": "invalid_target"}', "identity_unavailable"),
        (400, '{"error": ["access_denied"]}', "identity_unavailable"),
        (400, "<html>", "identity_unavailable"),
        (403, "", "identity_unavailable"),
        (404, "", "identity_unavailable"),
        (429, '{"error": "access_denied"}', "identity_unavailable"),
        (500, "Traceback", "identity_unavailable"),
        (503, '{"error": "access_denied"}', "identity_unavailable"),
        (302, "", "identity_unavailable"),
        (204, "", "identity_unavailable"),
        (200, "", "identity_unavailable"),
        (200, "[]", "identity_unavailable"),
        (200, "[" * 60_000, "identity_unavailable"),
        (200, '{"access_token": 5}', "identity_unavailable"),
        (200, '{"access_token": "not-a-jwt"}', "identity_unavailable"),
        (200, '{"access_token": "\\u00e9"}', "identity_unavailable"),
        (200, json.dumps({"access_token": "x" * 20_000}), "identity_unavailable"),
        (200, "x" * 70_000, "identity_unavailable"),
    ],
)
async def test_an_answer_without_a_passport_is_the_tokens_fault_or_the_services(
    service: IdentityService, status: int, body: str, expected: str
) -> None:
    service.says = (status, body)
    async with IdentityService() as elsewhere, exchanging(service) as gw:
        service.headers = {"Location": elsewhere.token_url} if status == 302 else {}
        assert await gw.outcome(service.issue()) == expected
        assert elsewhere.forms == []


@pytest.mark.parametrize(
    ("told", "waits"), [("30", "30"), ("9999", "60"), ("0", "1"), ("soon", "1"), ("1e9", "1"), (None, "1")]
)
async def test_who_cannot_be_asked_says_when_to_come_again(
    service: IdentityService, told: str | None, waits: str
) -> None:
    service.says, service.headers = (503, ""), {} if told is None else {"Retry-After": told}
    async with exchanging(service) as gw:
        with pytest.raises(IdentityUnavailable) as refused:
            await gw.call(service.issue())
    assert refused.value.headers["Retry-After"] == waits
    assert service.token_url not in refused.value.message
