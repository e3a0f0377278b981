"""Many calls and few exchanges: one for each bearer, few at once, known bearers first, nothing left behind."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from pydantic import SecretStr

from gateway import config
from gateway.identity.authorities import Authorities
from gateway.identity.endpoint import MAX_WAITING, Endpoint
from tests.authenticating import exchanging, until
from tests.deadlines import DEADLINE_S
from tests.identity_provider import SetClock
from tests.identity_service import IdentityService, stranger


@pytest.fixture
async def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def service(clock: SetClock) -> AsyncIterator[IdentityService]:
    async with IdentityService(clock=clock) as service:
        yield service


async def test_two_hundred_first_calls_of_one_bearer_make_one_exchange(service: IdentityService) -> None:
    bearer = service.issue()
    async with exchanging(service) as gw:
        assert {one.key for one in await asyncio.gather(*(gw.call(bearer) for _ in range(200)))} == {"sa-1"}
    assert service.asked[bearer] == 1


async def test_a_hung_service_delays_nobody_whose_passport_is_known(service: IdentityService) -> None:
    bearer = service.issue()
    async with exchanging(service, timeout="2s", concurrency=8) as gw:
        await gw.call(bearer)
        service.hang()
        strangers = [asyncio.create_task(gw.outcome(stranger(serial))) for serial in range(100)]
        await until(lambda: service.at_once == 6)
        for _ in range(50):
            assert gw.call_at_once(bearer).key == "sa-1"
        assert await asyncio.gather(*strangers) == ["identity_unavailable"] * 100
    assert service.most_at_once == 6  # of 8, two are for renewals


async def test_renewals_that_hang_or_wait_for_their_turn_make_no_call_wait(
    service: IdentityService, clock: SetClock
) -> None:
    bearers = [service.issue(f"sa-{serial}") for serial in range(20)]
    async with exchanging(service, concurrency=4) as gw:
        for bearer in bearers:
            await gw.call(bearer)
        service.hang()
        for _ in range(59):
            clock.advance(1.0)
            for bearer in bearers:
                gw.call_at_once(bearer)
            await asyncio.sleep(0)
        assert service.at_once <= 1  # one of four questions is a renewal
        clock.advance(1.0)
        waiting = asyncio.create_task(gw.outcome(bearers[0]))
        await asyncio.sleep(0)
        service.answer()
        assert await waiting == "sa-0"


async def test_a_flood_of_strangers_does_not_hold_up_renewals(service: IdentityService, clock: SetClock) -> None:
    bearer = service.issue()
    async with exchanging(service, concurrency=4) as gw:
        await gw.call(bearer)
        service.hang()
        clock.advance(36.0)
        strangers = [asyncio.create_task(gw.outcome(stranger(serial))) for serial in range(100)]
        await until(lambda: service.at_once == 3)
        assert gw.call_at_once(bearer).key == "sa-1"
        await until(lambda: service.at_once == 4 and service.asked[bearer] == 2)
        service.answer()
        assert set(await asyncio.gather(*strangers)) == {"inactive"}
    assert service.most_at_once == 4


async def test_only_so_many_strangers_wait_for_their_turn(service: IdentityService) -> None:
    service.hang()
    async with aiohttp.ClientSession() as session:
        asking = Endpoint(config.Remote(url=service.token_url, concurrency=2), session, authorities=Authorities(None))
        calls = [asyncio.create_task(asking.post({}, renewal=False)) for _ in range(MAX_WAITING + 11)]
        done, waiting = await asyncio.wait(calls, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 10:
            done, waiting = await asyncio.wait(calls, timeout=0.01)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one.exception().__class__.__name__) for one in done] == ["IssuerFailed"] * 10


async def test_a_caller_that_leaves_does_not_end_the_exchange_that_others_wait_for(service: IdentityService) -> None:
    bearer = service.issue()
    service.hang()
    async with exchanging(service) as gw:
        leaving, staying = [asyncio.create_task(gw.call(bearer)) for _ in range(2)]
        await until(lambda: service.at_once == 1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        service.answer()
        assert (await staying).key == "sa-1"
    assert service.asked[bearer] == 1


async def test_closing_amid_an_exchange_leaves_no_task_behind(service: IdentityService) -> None:
    service.hang()
    before = asyncio.all_tasks()
    async with exchanging(service) as gw:
        waiting = asyncio.create_task(gw.outcome(service.issue()))
        await until(lambda: service.at_once == 1)
    assert await waiting == "identity_unavailable"
    assert {task for task in asyncio.all_tasks() - before if "gateway" in repr(task)} == set()


async def test_a_connection_that_went_stale_costs_no_call(service: IdentityService) -> None:
    async with exchanging(service) as gw:
        for _ in range(3):
            assert await gw.outcome(service.issue()) == "sa-1"
            await service.down()
            await service.up()
        service.drops = 1
        assert await gw.outcome(service.issue()) == "sa-1"
        assert gw.questions == ["ok"] * 4
        service.drops = 2
        assert await gw.outcome(service.issue()) == "identity_unavailable"


async def test_the_log_tells_of_an_outage_once_and_of_no_token_or_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"client_id": "gateway", "client_secret": SecretStr("secret-canary")}
    async with IdentityService() as service, exchanging(service, **secret) as gw:
        bearers = [service.issue() for _ in range(20)]
        service.says = (500, "body-canary")
        for bearer in bearers:
            await gw.outcome(bearer)
        service.says = None
        for bearer in bearers:
            assert await gw.outcome(bearer) == "sa-1"
        assert await gw.outcome(stranger()) == "inactive"
    assert caplog.text.count(f"{service.token_url} answered 500") == 1
    assert caplog.text.count("answers again") == 1
    assert "canary" not in caplog.text
    for bearer in bearers:
        assert all(part not in caplog.text for part in bearer.split("."))
