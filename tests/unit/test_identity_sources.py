"""Where key sets come from, and from where they must not."""

import asyncio
import gzip
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway import config
from gateway.identity.keys import KeySetUnusable
from gateway.identity.sources import MAX_DOCUMENT_BYTES, fresh_for_s, source_of
from tests.certificates import certified
from tests.identity_provider import IdentityProvider


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    async with IdentityProvider(document=b"the keys") as provider:
        yield provider


async def read(session: aiohttp.ClientSession, jwks: str | None, issuer: str = "idp", **settings: str) -> bytes:
    return (await source_of(config.Issuer(issuer=issuer, jwks=jwks, **settings), session)()).content


async def test_a_url_is_fetched(session: aiohttp.ClientSession, provider: IdentityProvider) -> None:
    assert await read(session, provider.jwks) == b"the keys"


async def test_a_redirect_is_not_followed(session: aiohttp.ClientSession, provider: IdentityProvider) -> None:
    async with IdentityProvider(document=b"foreign keys") as elsewhere:
        provider.status, provider.headers = 302, {"Location": elsewhere.jwks}
        with pytest.raises(KeySetUnusable, match=f"{provider.jwks} answered 302; expected 200"):
            await read(session, provider.jwks)
        assert elsewhere.hits == 0


async def test_only_1_mib_is_read(session: aiohttp.ClientSession, provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    provider.document = b"x" * MAX_DOCUMENT_BYTES
    file.write_bytes(provider.document)
    assert await read(session, provider.jwks) == await read(session, str(file)) == provider.document
    provider.document += b"x"
    file.write_bytes(provider.document)
    for where in (provider.jwks, str(file)):
        with pytest.raises(KeySetUnusable, match=f"{where} is larger than 1 MiB"):
            await read(session, where)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("http://user:secret@127.0.0.1:1/jwks?key=secret", "http://127.0.0.1:1/jwks cannot be fetched: Connect call"),
        ("http://user:secret@[half/jwks", "the configured URL cannot be fetched: "),
        ("http:///jwks", "the configured URL cannot be fetched: "),
        ("/nowhere/keys.json", "/nowhere/keys.json cannot be read: No such file or directory"),
        ("/", "/ cannot be read: Is a directory"),
    ],
)
async def test_what_cannot_be_had_is_said_without_secrets(
    session: aiohttp.ClientSession, where: str, message: str
) -> None:
    with pytest.raises(KeySetUnusable) as unusable:
        await read(session, where)
    assert str(unusable.value).startswith(message)
    assert "secret" not in str(unusable.value)


async def test_a_file_that_hangs_is_read_by_one_thread_however_often_it_is_asked_for(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    os.mkfifo(file)
    source = source_of(config.Issuer(issuer="idp", jwks=str(file)), session)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await source()
    reading = [thread for thread in threading.enumerate() if str(file) in thread.name]
    assert [thread.daemon for thread in reading] == [True]  # nobody waits for it when the process ends
    waiting = asyncio.ensure_future(source())
    await asyncio.to_thread(file.write_bytes, b"the keys")
    assert (await waiting).content == b"the keys"


@pytest.mark.parametrize("slash", ["", "/"])
async def test_discovery_asks_the_issuer_where_its_keys_are(
    session: aiohttp.ClientSession, provider: IdentityProvider, slash: str
) -> None:
    issuer = provider.issuer + slash
    provider.metadata = {"issuer": issuer, "jwks_uri": provider.jwks}
    assert await read(session, None, issuer) == b"the keys"


async def test_discovery_trusts_only_the_metadata_of_exactly_this_issuer(
    session: aiohttp.ClientSession, provider: IdentityProvider
) -> None:
    for issuer in (provider.issuer + "/", [provider.issuer], None, "https://other.example"):
        provider.metadata = {"issuer": issuer, "jwks_uri": provider.jwks}
        with pytest.raises(KeySetUnusable, match="is not the metadata of exactly this issuer"):
            await read(session, None, provider.issuer)
    assert provider.hits == 0


async def test_discovered_keys_come_by_tls_or_from_the_issuer_itself(
    session: aiohttp.ClientSession, provider: IdentityProvider
) -> None:
    async with IdentityProvider() as other:
        for jwks_uri in (other.jwks, "/jwks", "file:///etc/keys", "http://[half", "https:///jwks", "", 1, None):
            provider.metadata = {"issuer": provider.issuer, "jwks_uri": jwks_uri}
            with pytest.raises(KeySetUnusable, match="jwks_uri must be an https URL, or of the issuer's own origin"):
                await read(session, None, provider.issuer)
        assert other.hits == 0
        provider.metadata = {"issuer": provider.issuer, "jwks_uri": other.jwks.replace("http:", "https:")}
        with pytest.raises(KeySetUnusable, match="cannot be fetched"):  # allowed, but nobody speaks TLS there
            await read(session, None, provider.issuer)


@pytest.mark.parametrize("metadata", ["<html>", "[]", "1", "[" * 10**5, "\x00"])
async def test_metadata_that_is_none_is_refused(
    session: aiohttp.ClientSession, provider: IdentityProvider, metadata: str
) -> None:
    provider.metadata = metadata
    with pytest.raises(KeySetUnusable):
        await read(session, None, provider.issuer)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], None),
        ([("Cache-Control", "public, MAX-AGE=60")], 60),
        ([("cache-control", 'max-age="60"'), ("Age", "50")], 10),
        ([("Cache-Control", "max-age=60"), ("Age", "90")], 0),
        ([("Cache-Control", "max-age=60"), ("Age", "x")], 60),
        ([("Cache-Control", "max-age=60"), ("Cache-Control", "max-age=5")], 5),
        ([("Cache-Control", "no-cache")], 0),
        ([("Cache-Control", "no-store, max-age=60")], 0),
        ([("Cache-Control", 'no-cache="Set-Cookie"')], 0),
        ([("Cache-Control", "s-maxage=1, max-age=abc, max-age=-1, max-age=1e9, , ==")], None),
        ([("Cache-Control", "max-age=" + "9" * 5000)], None),
    ],
)
def test_freshness_is_read_from_cache_control(headers: list[tuple[str, str]], seconds: float | None) -> None:
    assert fresh_for_s(CIMultiDictProxy(CIMultiDict(headers))) == seconds


async def test_a_packed_document_is_not_unpacked(session: aiohttp.ClientSession, provider: IdentityProvider) -> None:
    provider.document, provider.headers = gzip.compress(b"x" * 2**24), {"Content-Encoding": "gzip"}
    assert await read(session, provider.jwks) == provider.document


async def test_an_issuer_may_have_certificates_of_its_own(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    tls, ca = certified(tmp_path)
    async with IdentityProvider(document=b"the keys", tls=tls) as provider:
        assert await read(session, provider.jwks, ca=str(ca)) == b"the keys"
        assert await read(session, None, provider.issuer, ca=str(ca)) == b"the keys"
        with pytest.raises(KeySetUnusable, match=f"{provider.jwks} cannot be fetched: "):
            await read(session, provider.jwks)
        for unusable in ("/nowhere/ca.pem", __file__):
            with pytest.raises(KeySetUnusable, match=f"the certificates of {unusable} cannot be read"):
                await read(session, provider.jwks, ca=unusable)


async def test_certificates_are_read_again_when_they_change(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    tls, ca = certified(tmp_path)
    _, other = certified(tmp_path / "other")
    used = tmp_path / "ca.pem"
    async with IdentityProvider(document=b"the keys", tls=tls) as provider:
        source = source_of(config.Issuer(issuer="idp", jwks=provider.jwks, ca=str(used)), session)
        for file, good in ((other, False), (ca, True), (other, False)):
            used.write_bytes(file.read_bytes())
            os.utime(used, ns=(0, used.stat().st_mtime_ns + 10**9))
            if good:
                assert (await source()).content == b"the keys"
            else:
                with pytest.raises(KeySetUnusable):
                    await source()


async def test_a_key_set_may_ask_for_a_token_which_goes_nowhere_else(
    session: aiohttp.ClientSession, provider: IdentityProvider, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    for token in ("first", "second"):
        file.write_text(token + "\n")
        await read(session, provider.jwks, jwks_token=str(file))
    assert provider.authorizations == ["Bearer first", "Bearer second"]
    await read(session, None, provider.issuer, jwks_token=str(file))
    assert provider.authorizations[2:] == ["Bearer second"] * 2
    tls, ca = certified(tmp_path)
    async with IdentityProvider(document=b"elsewhere", tls=tls) as elsewhere:
        provider.metadata = {"issuer": provider.issuer, "jwks_uri": elsewhere.jwks}
        assert await read(session, None, provider.issuer, jwks_token=str(file), ca=str(ca)) == b"elsewhere"
        assert elsewhere.authorizations == [None]
    with pytest.raises(KeySetUnusable, match="/nowhere cannot be read"):
        await read(session, provider.jwks, jwks_token="/nowhere")
