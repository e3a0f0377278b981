"""A key set by itself: what a refresh keeps, and what closing ends."""

import asyncio

from gateway import config
from gateway.clock import SystemClock
from gateway.identity.keyset import KeySet
from gateway.identity.sources import Document, Source
from tests.identity_provider import key_set, signing_key

ISSUER = config.Issuer(issuer="idp", jwks="keys.json").model_copy(update={"refresh": 0.001, "cooldown": 0.001})


def built(source: Source, results: list[tuple[str, str]]) -> KeySet:
    return KeySet(ISSUER, source, clock=SystemClock(), observe=lambda *told: results.append(told))


async def test_a_refresh_that_brings_the_same_keys_makes_no_token_prove_itself_again() -> None:
    results: list[tuple[str, str]] = []
    fetched = asyncio.Event()

    async def source() -> Document:
        if len(results) == 3:
            fetched.set()
        return Document(key_set(signing_key("k1", "ES256")))

    keys = built(source, results)
    assert await keys.find("k1", "ES256") is not None
    first = keys.keys
    keys.start()
    await fetched.wait()
    assert keys.keys is first
    await keys.close()
    assert set(results) == {("idp", "ok")}


async def test_when_close_returns_the_fetch_under_way_has_ended() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def source() -> Document:
        try:
            asked.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Document(b"")

    keys = built(source, [])
    keys.start()
    await asked.wait()
    await keys.close()
    assert ended.is_set()


async def test_closing_what_was_never_started_is_fine() -> None:
    async def source() -> Document:
        return Document(b"")

    await built(source, []).close()


async def test_a_fetch_that_began_before_a_vouched_token_came_is_not_the_last_word_on_its_key() -> None:
    published = [signing_key("k1", "ES256")]
    asked, go = asyncio.Event(), asyncio.Event()
    fetches = 0

    async def source() -> Document:
        nonlocal fetches
        fetches += 1
        document = Document(key_set(*published))
        asked.set()
        await go.wait()
        return document

    keys = built(source, [])
    first = asyncio.create_task(keys.find("k1", "ES256"))
    await asked.wait()
    published.append(signing_key("k2", "ES256"))
    second = asyncio.create_task(keys.find("k2", "ES256", vouched=True))
    await asyncio.sleep(0)
    go.set()
    assert (await first).key_id == "k1"
    assert (await second).key_id == "k2"
    assert fetches == 2
    await keys.close()
