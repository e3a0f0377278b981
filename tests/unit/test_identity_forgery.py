"""Tokens that must not pass: forged, confused, misdirected, out of time. And whatever else bytes can be."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.errors import ExpiredToken, InvalidToken, Refusal, Unauthorized
from gateway.identity.authenticate import Authenticator
from gateway.identity.peek import MAX_PART_BYTES
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from tests.identity_provider import IdentityProvider, SetClock, SigningKey, any_json, b64, public_members, signing_key

ISSUER = "https://idp.example"
CLOCK = SetClock()
K1 = signing_key("k1")
CLAIMS = {"iss": ISSUER, "aud": ["other", "gw"], "sub": "user-1", "exp": CLOCK.now() + 3600}
OCT = b"a shared secret of thirty-two octets"
KEYS = json.dumps({"keys": [K1.jwk(), {"kty": "oct", "kid": "oct", "alg": "HS256", "k": b64(OCT)}]})


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


def hs256(secret: bytes, key_id: str) -> str:
    text = b64(json.dumps({"alg": "HS256", "kid": key_id}).encode()) + "." + b64(json.dumps(CLAIMS).encode())
    return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def pem(encoding: serialization.Encoding) -> bytes:
    return K1.private.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)


def spoiled_header(**members: object) -> str:
    return K1.token(CLAIMS, **members)


ATTACKER = signing_key("attacker")


def tampered() -> str:
    header, _, signature = K1.token(CLAIMS).split(".")
    return f"{header}.{b64(json.dumps({**CLAIMS, 'sub': 'root'}).encode())}.{signature}"


FORGERIES: dict[str, Callable[[], str]] = {
    "hs256-by-pem": lambda: hs256(pem(serialization.Encoding.PEM), "k1"),
    "hs256-by-der": lambda: hs256(pem(serialization.Encoding.DER), "k1"),
    "hs256-by-jwk": lambda: hs256(json.dumps(K1.jwk()).encode(), "k1"),
    "hs256-by-published-oct": lambda: hs256(OCT, "oct"),
    "none-unsigned": lambda: spoiled_header(alg="none").rsplit(".", 1)[0] + ".",
    "none-signed": lambda: spoiled_header(alg="none"),
    "no-alg": lambda: spoiled_header(alg=None),
    "alg-list": lambda: spoiled_header(alg=["RS256"]),
    "alg-other-case": lambda: spoiled_header(alg="rS256"),
    "alg-space": lambda: spoiled_header(alg="RS256 "),
    "alg-not-allowed": lambda: SigningKey("k1", "RS512", K1.private).token(CLAIMS),
    "crit": lambda: spoiled_header(crit=["x-foo"], **{"x-foo": 1}),
    "crit-empty": lambda: spoiled_header(crit=[]),
    "crit-b64": lambda: spoiled_header(crit=["b64"], b64=True),
    "b64-false": lambda: spoiled_header(b64=False),
    "jwk": lambda: ATTACKER.token(CLAIMS, kid="k1", jwk=public_members(ATTACKER.private)),
    "jwk-own-kid": lambda: ATTACKER.token(CLAIMS, jwk=ATTACKER.jwk()),
    "x5u": lambda: ATTACKER.token(CLAIMS, kid="k1", x5u="https://attacker.example/cert"),
    "attacker-without-kid": lambda: ATTACKER.token(CLAIMS, kid=None),
    "kid-number": lambda: spoiled_header(kid=1),
    "kid-list": lambda: spoiled_header(kid=["k1"]),
    "kid-null": lambda: K1.raw('[{"alg":"RS256"}]', json.dumps(CLAIMS)),
    "kid-empty": lambda: spoiled_header(kid=""),
    "kid-path": lambda: spoiled_header(kid="../../k1"),
    "kid-newline": lambda: spoiled_header(kid="k1\n"),
    "iss-prefix": lambda: K1.token({**CLAIMS, "iss": "https://idp"}),
    "iss-suffix": lambda: K1.token({**CLAIMS, "iss": ISSUER + ".evil"}),
    "iss-slash": lambda: K1.token({**CLAIMS, "iss": ISSUER + "/"}),
    "iss-list": lambda: K1.token({**CLAIMS, "iss": [ISSUER]}),
    "iss-missing": lambda: K1.token({"exp": CLAIMS["exp"]}),
    "aud-missing": lambda: K1.token({"iss": ISSUER, "sub": "s", "exp": CLAIMS["exp"]}),
    "aud-other": lambda: K1.token({**CLAIMS, "aud": ["other"]}),
    "exp-missing": lambda: K1.token({"iss": ISSUER, "sub": "s", "aud": "gw"}),
    "sub-number": lambda: K1.token({**CLAIMS, "sub": 7}),
    "jwe": lambda: "a.b.c.d.e",
    "two-parts": lambda: "a.b",
    "empty-parts": lambda: "..",
    "not-base64": lambda: "!.~.+",
    "nested-10000-deep": lambda: K1.raw("[" * 4000, "[" * 4000),
    "payload-array": lambda: K1.raw('{"alg":"RS256","kid":"k1"}', "[]"),
    "payload-not-utf8": lambda: K1.raw('{"alg":"RS256","kid":"k1"}', "\udcff"),
    "payload-too-large": lambda: K1.token({**CLAIMS, "pad": "x" * MAX_PART_BYTES}),
    "tampered": tampered,
}


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
