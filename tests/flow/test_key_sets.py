"""The identity stage against a real key server on a real socket: fetching, freshness, rotation, outage."""

import asyncio
import json
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import config
from gateway.clock import Clock, SystemClock
from gateway.errors import IdentityUnavailable
from tests.authenticating import Stage, authenticating, outcome, until
from tests.deadlines import DEADLINE_S
from tests.identity_provider import IdentityProvider, SetClock, SigningKey, b64, key_set, signing_key

ISSUER = "https://idp.example"
K1, K2 = signing_key("k1"), signing_key("k2", "ES512")


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    async with IdentityProvider() as provider:
        provider.publish(K1)
        yield provider


@asynccontextmanager
async def gateway(
    jwks: str | None,
    *,
    clock: Clock | None = None,
    issuer: str = ISSUER,
    cooldown: float = 10.0,
    refresh: float = 300.0,
    timeout_s: float = 5.0,
    start: bool = True,
) -> AsyncIterator[Stage]:
    entry = config.Issuer(issuer=issuer, jwks=jwks).model_copy(update={"cooldown": cooldown, "refresh": refresh})
    async with authenticating(entry, clock=clock or SystemClock(), start=start, fetch_timeout_s=timeout_s) as stage:
        yield stage


_serial = iter(range(10**9))


def token(key: SigningKey = K1, *, issuer: str = ISSUER, lives_s: float = 3600, clock: Clock | None = None) -> str:
    """Return a token that nobody has seen before."""
    now = (clock or SystemClock()).now()
    return key.token({"iss": issuer, "sub": "user-1", "exp": now + lives_s, "jti": str(next(_serial))})


def garbage(serial: int) -> str:
    """Return an unsigned token of a key id that was never seen."""
    return token(SigningKey(f"random-{serial}", "RS256", K1.private)).rsplit(".", 1)[0] + "." + b64(b"x" * 256)


async def until_refused(gw: Stage, token: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await outcome(gw.call(token)) == "user-1":
            await asyncio.sleep(0.005)


async def test_two_hundred_first_calls_make_one_fetch(provider: IdentityProvider) -> None:
    provider.delay_s = 0.1
    async with gateway(provider.jwks) as gw:
        principals = await asyncio.gather(*(gw.call(token()) for _ in range(200)))
    assert {p.key for p in principals} == {"user-1"}
    assert provider.hits == 1


async def test_keys_are_fetched_on_demand_without_the_background_task(provider: IdentityProvider) -> None:
    async with gateway(provider.jwks, start=False) as gw:
        assert provider.hits == 0
        assert (await gw.call(token())).key == "user-1"
        assert provider.hits == 1


async def test_a_token_whose_key_is_known_never_suspends(provider: IdentityProvider) -> None:
    async with gateway(provider.jwks) as gw:
        seen = token()
        await gw.call(seen)
        assert gw.call_at_once(seen).key == "user-1"
        assert gw.call_at_once(token()).key == "user-1"


async def test_a_flood_of_unknown_key_ids_makes_one_fetch_per_cooldown(provider: IdentityProvider) -> None:
    clock = SetClock()
    async with gateway(provider.jwks, clock=clock, cooldown=2.0) as gw:
        await gw.call(token(clock=clock))
        for serial in range(500):
            assert await outcome(gw.call(garbage(serial))) == "key"
            assert gw.call_at_once(token(clock=clock)).key == "user-1"
            clock.advance(0.01)
    assert provider.hits == 1 + 3  # 5 s of flood: at once, at 2 s and at 4 s
    assert provider.most_at_once == 1


async def test_key_ids_that_nobody_has_are_not_kept(provider: IdentityProvider) -> None:
    clock = SetClock()
    rest = token(clock=clock).partition(".")[2]
    # A key id of 200 bytes each: kept, they would take a fifth of a megabyte.
    heads = [b64(json.dumps({"alg": "RS256", "kid": f"{serial:0200}"}).encode()) for serial in range(1000)]
    strangers = [f"{head}.{rest}" for head in heads]
    async with gateway(provider.jwks, clock=clock, cooldown=10.0) as gw:
        await gw.call(token(clock=clock))
        assert await outcome(gw.call(strangers[0])) == "key"
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for stranger in strangers:
                assert await outcome(gw.call(stranger)) == "key"
                clock.advance(0.001)
            assert tracemalloc.get_traced_memory()[0] - before < 50_000
        finally:
            tracemalloc.stop()
    assert provider.hits == 2


async def test_a_failed_fetch_starts_the_cooldown_too(provider: IdentityProvider) -> None:
    clock = SetClock()
    async with gateway(provider.jwks, clock=clock, cooldown=2.0) as gw:
        await gw.call(token(clock=clock))
        provider.status = 500
        clock.advance(2.0)
        for serial in range(50):
            assert await outcome(gw.call(garbage(serial))) == "key"
    assert provider.hits == 2
    assert gw.fetches == ["ok", "failed"]


async def test_a_hung_issuer_delays_nobody_whose_key_is_known(provider: IdentityProvider) -> None:
    clock = SetClock()
    async with gateway(provider.jwks, clock=clock, cooldown=10.0, timeout_s=1.6) as gw:
        seen = token(clock=clock)
        await gw.call(seen)
        provider.hang()
        clock.advance(10.0)  # so that the next unknown key does ask
        started = time.perf_counter()
        strangers = [asyncio.create_task(outcome(gw.call(garbage(serial)))) for serial in range(20)]
        await until(lambda: provider.at_once == 1)
        for _ in range(50):
            gw.call_at_once(seen)
            gw.call_at_once(token(clock=clock))
        assert await asyncio.gather(*strangers) == ["key"] * 20
        assert 1.5 < time.perf_counter() - started < 5  # one after the other they would take half a minute
    assert provider.most_at_once == 1
    assert gw.fetches == ["ok", "failed"]


async def test_a_caller_that_leaves_does_not_end_the_fetch_that_others_wait_for(provider: IdentityProvider) -> None:
    provider.hang()
    async with gateway(provider.jwks) as gw:
        leaving, staying = asyncio.create_task(gw.call(token())), asyncio.create_task(gw.call(token()))
        await until(lambda: provider.at_once == 1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        provider.answer()
        assert (await staying).key == "user-1"
    assert provider.hits == 1


async def test_closing_amid_a_fetch_leaves_no_task_behind(provider: IdentityProvider) -> None:
    provider.hang()
    before = asyncio.all_tasks()
    async with gateway(provider.jwks, start=True) as gw:
        waiting = asyncio.create_task(outcome(gw.call(token())))
        await until(lambda: provider.at_once == 1)
    assert await waiting == "identity_unavailable"
    assert {task for task in asyncio.all_tasks() - before if "gateway" in repr(task)} == set()


async def test_without_any_key_set_calls_are_told_when_to_come_back(provider: IdentityProvider) -> None:
    provider.status = 503
    clock = SetClock()
    async with gateway(provider.jwks, clock=clock, cooldown=10.0) as gw:
        with pytest.raises(IdentityUnavailable) as refused:
            await gw.call(token(clock=clock))
        assert refused.value.headers["Retry-After"] == "10"
        clock.advance(7.5)
        with pytest.raises(IdentityUnavailable) as refused:
            await gw.call(token(clock=clock))
        assert refused.value.headers["Retry-After"] == "3"
        assert provider.hits == 1
        provider.status = 200
        clock.advance(2.5)
        assert (await gw.call(token(clock=clock))).key == "user-1"
    assert gw.fetches == ["failed", "ok"]


async def test_an_issuer_that_was_down_at_start_is_tried_again_in_the_background(provider: IdentityProvider) -> None:
    provider.status = 500
    async with gateway(provider.jwks, cooldown=0.05) as gw:
        await until(lambda: gw.fetches[:1] == ["failed"])
        provider.status = 200
        await until(lambda: gw.fetches[-1] == "ok")
        assert gw.call_at_once(token()).key == "user-1"


async def test_keys_stay_while_the_issuer_is_down(provider: IdentityProvider) -> None:
    async with gateway(provider.jwks, cooldown=0.02, refresh=0.02) as gw:
        seen = token()
        await gw.call(seen)
        provider.status = 500
        await until(lambda: gw.fetches[-3:] == ["failed"] * 3)
        assert gw.call_at_once(seen).key == "user-1"
        assert gw.call_at_once(token()).key == "user-1"


async def test_a_new_key_works_after_one_cooldown_at_most(provider: IdentityProvider) -> None:
    clock = SetClock()
    async with gateway(provider.jwks, clock=clock, cooldown=10.0) as gw:
        await gw.call(token(clock=clock))
        assert await outcome(gw.call(garbage(1))) == "key"  # takes this cooldown's fetch
        provider.publish(K1, K2)
        for serial in range(9):
            assert await outcome(gw.call(token(K2, clock=clock))) == "key"
            assert await outcome(gw.call(garbage(serial))) == "key"
            clock.advance(1.0)
        clock.advance(1.0)
        assert await outcome(gw.call(token(K2, clock=clock))) == "user-1"
        assert await outcome(gw.call(token(K1, clock=clock))) == "user-1"


async def test_a_refresh_in_the_background_takes_no_new_keys_turn(provider: IdentityProvider) -> None:
    clock = SetClock()
    async with gateway(provider.jwks, clock=clock, cooldown=10.0) as gw:
        await until(lambda: gw.fetches == ["ok"])
        provider.publish(K1, K2)
        assert await outcome(gw.call(token(K2, clock=clock))) == "user-1"
    assert provider.hits == 2


async def test_a_withdrawn_key_stops_at_the_next_refresh_even_for_remembered_tokens(provider: IdentityProvider) -> None:
    provider.publish(K1, K2)
    async with gateway(provider.jwks, refresh=0.03) as gw:
        seen = token(K1)
        await gw.call(seen)
        provider.publish(K2)
        await until_refused(gw, seen)
        assert await outcome(gw.call(seen)) == "key"
        assert await outcome(gw.call(token(K1))) == "key"
        assert await outcome(gw.call(token(K2))) == "user-1"


async def test_an_empty_key_set_withdraws_every_key(provider: IdentityProvider) -> None:
    async with gateway(provider.jwks, refresh=0.03) as gw:
        seen = token()
        await gw.call(seen)
        provider.publish()
        await until_refused(gw, seen)


async def test_after_new_material_under_an_old_key_id_only_the_new_verifies(provider: IdentityProvider) -> None:
    new = SigningKey("k1", "RS256", signing_key("other").private)
    async with gateway(provider.jwks, refresh=0.03) as gw:
        seen = token(K1)
        await gw.call(seen)
        provider.publish(new)
        await until_refused(gw, seen)
        assert await outcome(gw.call(seen)) == "signature"
        assert await outcome(gw.call(token(K1))) == "signature"
        assert await outcome(gw.call(token(new))) == "user-1"


async def test_refreshes_cost_one_fetch_each_under_load(provider: IdentityProvider) -> None:
    started = time.perf_counter()
    async with gateway(provider.jwks, refresh=0.1) as gw:
        await gw.call(token())
        while provider.hits < 4:
            gw.call_at_once(token())
            await asyncio.sleep(0)
    assert provider.hits - 1 <= (time.perf_counter() - started) / 0.1
    assert provider.most_at_once == 1


@pytest.mark.parametrize(
    ("cache_control", "refresh", "cooldown"), [("max-age=0", 300.0, 0.03), ("max-age=600", 0.03, 0.03)]
)
async def test_a_source_says_when_to_come_again_between_cooldown_and_refresh(
    provider: IdentityProvider, cache_control: str, refresh: float, cooldown: float
) -> None:
    provider.headers = {"Cache-Control": cache_control}
    started = time.perf_counter()
    async with gateway(provider.jwks, cooldown=cooldown, refresh=refresh) as gw:
        await until(lambda: len(gw.fetches) == 4)
    assert provider.hits - 1 <= (time.perf_counter() - started) / 0.03


async def test_the_age_of_a_key_set_is_that_of_its_last_good_fetch(provider: IdentityProvider) -> None:
    clock = SetClock()
    provider.status = 500
    async with gateway(provider.jwks, clock=clock, cooldown=1.0) as gw:
        await until(lambda: gw.fetches == ["failed"])
        clock.advance(7.0)
        assert gw.authenticator.key_set_ages() == [(ISSUER, 7.0)]
        provider.status = 200
        await gw.call(token(clock=clock))
        assert gw.authenticator.key_set_ages() == [(ISSUER, 0.0)]
        provider.status = 500
        for _ in range(3):
            clock.advance(100.0)
            assert gw.call_at_once(token(clock=clock)).key == "user-1"
            assert await outcome(gw.call(garbage(1))) == "key"
        assert gw.authenticator.key_set_ages() == [(ISSUER, 300.0)]
    assert gw.fetches == ["failed", "ok", "failed", "failed", "failed"]


@pytest.mark.parametrize(("status", "document"), [(404, key_set(K2)), (200, b"<html>"), (200, b"{}")])
async def test_an_answer_that_is_no_key_set_changes_nothing(
    provider: IdentityProvider, status: int, document: bytes
) -> None:
    async with gateway(provider.jwks, refresh=0.03, cooldown=0.03) as gw:
        await gw.call(token())
        provider.status, provider.document = status, document
        await until(lambda: gw.fetches[-1] == "failed")
        assert gw.call_at_once(token()).key == "user-1"


async def test_keys_are_discovered_from_the_issuer(provider: IdentityProvider) -> None:
    async with gateway(None, issuer=provider.issuer) as gw:
        assert await outcome(gw.call(token(issuer=provider.issuer))) == "user-1"
    assert (provider.discoveries, provider.hits) == (1, 1)


async def test_the_stage_is_ready_once_it_has_keys(provider: IdentityProvider) -> None:
    provider.hang()
    async with gateway(provider.jwks) as gw:
        await until(lambda: provider.at_once == 1)
        assert not gw.authenticator.ready
        provider.answer()
        await until(lambda: gw.authenticator.ready)


async def test_a_key_set_file_is_read_again_at_every_refresh(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(K1))
    async with gateway(str(file), refresh=0.03, cooldown=0.03) as gw:
        seen = token(K1)
        assert await outcome(gw.call(seen)) == "user-1"
        file.unlink()
        await until(lambda: gw.fetches[-1] == "failed")
        assert gw.call_at_once(seen).key == "user-1"
        file.write_bytes(key_set(K2))
        await until_refused(gw, seen)
        assert await outcome(gw.call(token(K2))) == "user-1"


async def test_logs_tell_of_a_broken_key_set_without_its_secrets_or_any_token(
    provider: IdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = provider.jwks.replace("http://", "http://user:pass-canary@") + "?key=query-canary"
    tokens = [token(), token(K2), garbage(1), token(SigningKey("line\nbreak", "RS256", K1.private))]
    async with gateway(secret, refresh=0.03, cooldown=0.03) as gw:
        for one in tokens:
            await outcome(gw.call(one))
        provider.status = 500
        await until(lambda: gw.fetches[-1] == "failed")
    assert f"key set of {ISSUER}: {provider.jwks} answered 500; expected 200; 1 keys kept" in caplog.text
    assert "canary" not in caplog.text
    for one in tokens:
        assert all(part not in caplog.text for part in one.split("."))
