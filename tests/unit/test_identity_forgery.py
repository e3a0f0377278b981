"""Tokens that must not pass: forged, confused, misdirected, out of time. And whatever else bytes can be."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.errors import ExpiredToken, InvalidToken, Refusal, Unauthorized
from gateway.identity.authenticate import Authenticator
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from tests.forgeries import ATTACKER, K1, KEYS, forgeries
from tests.identity_provider import IdentityProvider, SetClock, any_json

ISSUER = "https://idp.example"
CLOCK = SetClock()
CLAIMS = {"iss": ISSUER, "aud": ["other", "gw"], "sub": "user-1", "exp": CLOCK.now() + 3600}


def settings(jwks: Path) -> config.Auth:
    entry = config.Issuer(issuer=ISSUER, jwks=str(jwks), algorithms=("RS256",), audience="gw", leeway="5s")
    return config.Auth(issuers=(entry,))


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Authenticator]:
    (tmp_path / "keys.json").write_text(KEYS)
    async with aiohttp.ClientSession() as session:
        built = Authenticator(settings(tmp_path / "keys.json"), session, clock=CLOCK, observe=lambda _i, _r: None)
        yield built
        await built.close()


FORGERIES = forgeries(CLAIMS)


async def test_the_control_token_passes(gateway: Authenticator) -> None:
    assert await gateway.authenticate(f"Bearer {K1.token(CLAIMS)}".encode()) == Principal("user-1", "user-1")
    assert await gateway.authenticate(f"bearer {K1.token(CLAIMS, kid=None)}".encode()) == Principal("user-1", "user-1")


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forgery_is_refused_with_the_same_words_as_any_bad_token(gateway: Authenticator, name: str) -> None:
    token = FORGERIES[name]()
    with pytest.raises(InvalidToken) as refused:
        await gateway.authenticate(f"Bearer {token}".encode())
    with pytest.raises(InvalidToken) as garbage:
        await gateway.authenticate(b"Bearer garbage")
    assert refused.value.body() == garbage.value.body()
    assert refused.value.headers == garbage.value.headers
    assert refused.value.headers["WWW-Authenticate"].startswith('Bearer error="invalid_token", error_description="')
    assert all(part not in refused.value.message for part in token.split(".") if len(part) > 5)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hs256-by-pem", "algorithm"),
        ("alg-space", "algorithm"),
        ("iss-slash", "issuer"),
        ("kid-path", "key"),
        ("jwk", "signature"),
        ("aud-other", "audience"),
        ("exp-missing", "required_claim"),
        ("jwe", "malformed"),
    ],
)
async def test_operators_are_told_why(gateway: Authenticator, name: str, reason: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        await gateway.authenticate(f"Bearer {FORGERIES[name]()}".encode())
    assert reason_of(refused.value) == reason


async def test_a_key_address_in_the_token_is_never_visited(gateway: Authenticator) -> None:
    async with IdentityProvider() as attacker:
        attacker.publish(ATTACKER)
        for key_id in ("k1", "attacker"):
            with pytest.raises(InvalidToken):
                await gateway.authenticate(f"Bearer {ATTACKER.token(CLAIMS, kid=key_id, jku=attacker.jwks)}".encode())
        assert attacker.hits == 0


async def test_a_remembered_token_does_not_outlive_itself(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(KEYS)
    clock = SetClock()
    token = K1.token({**CLAIMS, "exp": clock.now() + 2})
    async with aiohttp.ClientSession() as session:
        gateway = Authenticator(settings(tmp_path / "keys.json"), session, clock=clock, observe=lambda _i, _r: None)
        for _ in range(2):
            assert (await gateway.authenticate(f"Bearer {token}".encode())).key == "user-1"
        clock.advance(6.9)
        assert (await gateway.authenticate(f"Bearer {token}".encode())).key == "user-1"
        clock.advance(0.1)
        with pytest.raises(ExpiredToken):
            await gateway.authenticate(f"Bearer {token}".encode())
        await gateway.close()


async def test_a_genuine_token_that_names_nobody_is_told_so(gateway: Authenticator) -> None:
    nobody = K1.token({name: value for name, value in CLAIMS.items() if name != "sub"})
    with pytest.raises(Unauthorized) as refused:
        await gateway.authenticate(f"Bearer {nobody}".encode())
    assert (refused.value.code, reason_of(refused.value)) == ("invalid_token", "principal")
    assert refused.value.message.startswith("The token is genuine")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes | None], Principal | Refusal]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(KEYS)

    def ask(value: bytes | None) -> Principal | Refusal:
        async def authenticate() -> Principal:
            async with aiohttp.ClientSession() as session:
                gateway = Authenticator(settings(path), session, clock=CLOCK, observe=lambda _i, _r: None)
                try:
                    return await gateway.authenticate(value)
                finally:
                    await gateway.close()

        try:
            return asyncio.run(authenticate())
        except Refusal as refusal:
            return refusal

    return ask


Ask = Callable[[bytes | None], Principal | Refusal]


@given(st.none() | st.binary(max_size=60).map(b"Bearer ".__add__))
def test_any_header_bytes_end_in_a_refusal(ask: Ask, value: bytes | None) -> None:
    assert isinstance(ask(value), Unauthorized)


@given(position=st.integers(0, 2), at=st.integers(0), byte=st.sampled_from("A_-z0.=+~/é\udcff, \n"))
def test_no_change_of_a_character_keeps_a_token_genuine(ask: Ask, position: int, at: int, byte: str) -> None:
    token = K1.token(CLAIMS)
    parts = token.split(".")
    at %= len(parts[position])
    parts[position] = parts[position][:at] + byte + parts[position][at + 1 :]
    changed = ".".join(parts)
    assert changed == token or isinstance(ask(f"Bearer {changed}".encode("utf-8", "surrogateescape")), Unauthorized)


_NAMES = ["iss", "aud", "exp", "nbf", "iat", "sub", "jti", "org_id", "plan", "models"]


@given(
    claims=st.dictionaries(st.sampled_from(_NAMES), any_json),
    header=st.dictionaries(st.sampled_from(["alg", "kid", "b64", "typ", "crit"]), any_json, max_size=1),
)
def test_properly_signed_nonsense_ends_in_a_principal_or_a_refusal(
    ask: Ask, claims: dict[str, object], header: dict[str, object]
) -> None:
    assert isinstance(ask(f"Bearer {K1.token({**CLAIMS, **claims}, **header)}".encode()), Principal | Refusal)
