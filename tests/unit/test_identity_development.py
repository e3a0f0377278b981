"""The development key: made once, readable by its owner only, and trusted only where it is configured."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization

from gateway import config
from gateway.clock import SystemClock
from gateway.errors import Unauthorized
from gateway.identity import development
from gateway.identity.authenticate import Authenticator
from gateway.identity.development import DevelopmentKeyUnusable
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from tests.identity_provider import key_set, signing_key


def now() -> float:
    return SystemClock().now()


@asynccontextmanager
async def authenticator(auth: config.Auth) -> AsyncIterator[Authenticator]:
    async with aiohttp.ClientSession() as session:
        built = Authenticator(auth, session, clock=SystemClock(), observe=lambda _issuer, _result: None)
        try:
            yield built
        finally:
            await built.close()


async def reason(one: Authenticator, token: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        await one.authenticate(f"Bearer {token}".encode())
    return reason_of(refused.value)


def test_the_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    made = development.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert development.load_or_create(path).private_numbers() == made.private_numbers()
    assert development.load(path).private_numbers() == made.private_numbers()


async def test_a_signed_token_authenticates_offline(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    key = development.load_or_create(path)
    token = development.sign(key, tenant="acme", key_id="key-1", plan="gold", ttl_s=60, now=now())
    plain = development.sign(key, tenant="acme", key_id="key-2", plan=None, ttl_s=60, now=now())
    old = development.sign(key, tenant="acme", key_id="key-2", plan=None, ttl_s=60, now=now() - 3600)
    async with authenticator(config.Auth(development_key=str(path))) as gateway:
        gateway.start()
        assert await gateway.authenticate(f"Bearer {token}".encode()) == Principal("acme", "key-1", plan="gold")
        assert await gateway.authenticate(f"Bearer {plain}".encode()) == Principal("acme", "key-2")
        assert await reason(gateway, old) == "expired_token"


async def test_development_tokens_are_strangers_where_no_development_key_is_configured(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set(signing_key("k1", "ES256")))
    key = development.load_or_create(tmp_path / "key.pem")
    token = development.sign(key, tenant="acme", key_id="key-1", plan=None, ttl_s=60, now=now())
    async with authenticator(config.Auth(issuers=(config.Issuer(issuer="idp", jwks=str(keys)),))) as gateway:
        assert await reason(gateway, token) == "issuer"


async def test_another_development_key_is_not_ours(tmp_path: Path) -> None:
    development.load_or_create(tmp_path / "ours.pem")
    theirs = development.load_or_create(tmp_path / "theirs.pem")
    token = development.sign(theirs, tenant="acme", key_id="key-1", plan=None, ttl_s=60, now=now())
    async with authenticator(config.Auth(development_key=str(tmp_path / "ours.pem"))) as gateway:
        assert await reason(gateway, token) == "key"


async def test_serving_without_the_file_fails_clearly_and_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    async with authenticator(config.Auth(development_key=str(path))) as gateway:
        with pytest.raises(DevelopmentKeyUnusable) as unusable:
            gateway.start()
    assert str(unusable.value).startswith(f"auth.development_key: {path} does not exist. `gateway token` creates it")
    assert not path.exists()


@pytest.mark.parametrize("algorithm", ["RS256", "ES512", "EdDSA"])
def test_a_key_of_another_kind_is_refused(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(
        signing_key("k1", algorithm).private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(DevelopmentKeyUnusable, match="not an EC P-256 key"):
        development.load(path)


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("no key")
    with pytest.raises(DevelopmentKeyUnusable, match="not an unencrypted private key in PEM"):
        development.load(tmp_path / "text.pem")
    with pytest.raises(DevelopmentKeyUnusable, match=r"cannot be read: Is a directory"):
        development.load(tmp_path)
    with pytest.raises(DevelopmentKeyUnusable, match="cannot be created: No such file or directory"):
        development.load_or_create(tmp_path / "absent" / "key.pem")
