"""JWK Set bytes -> usable keys."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from gateway.identity.keys import Keys, KeySetUnusable
from tests.identity_provider import SigningKey, any_json, b64, key_set, signing_key

RSA, P256, P384, P521 = (signing_key(alg, alg) for alg in ("RS256", "ES256", "ES384", "ES512"))
ED25519, SECP256K1 = signing_key("EdDSA", "EdDSA"), signing_key("ES256K", "ES256K")


def parse(*entries: object) -> Keys:
    return Keys.parse(json.dumps({"keys": list(entries)}).encode())


@pytest.mark.parametrize("key", [RSA, P256, P384, P521, ED25519, SECP256K1], ids=lambda key: key.algorithm)
def test_a_key_of_every_kind_is_found_by_its_id_and_algorithm(key: SigningKey) -> None:
    keys = Keys.parse(key_set(RSA, P256, P384, P521, ED25519, SECP256K1))
    found = keys.find(key.key_id, key.algorithm)
    assert found is not None
    assert found.public == key.private.public_key()
    assert keys.find(key.key_id, "HS256") is None
    assert keys.find("another", key.algorithm) is None


def test_a_key_without_alg_verifies_what_its_kind_can() -> None:
    keys = parse(RSA.jwk(alg=None), P521.jwk(alg=None))
    for algorithm in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"):
        assert keys.find("RS256", algorithm) is not None
    assert keys.find("RS256", "ES512") is None
    assert keys.find("ES512", "ES512") is not None
    assert keys.find("ES512", "ES256") is None


def test_a_key_with_alg_verifies_that_alone() -> None:
    keys = parse(RSA.jwk(alg="PS256"))
    assert keys.find("RS256", "PS256") is not None
    assert keys.find("RS256", "RS256") is None


@pytest.mark.parametrize(
    "entry",
    [
        RSA.jwk(use="enc"),
        RSA.jwk(key_ops=["encrypt"]),
        RSA.jwk(key_ops="verify"),
        RSA.jwk(alg="RSA-OAEP"),
        RSA.jwk(alg="HS256"),
        RSA.jwk(alg="none"),
        RSA.jwk(alg=["RS256"]),
        {**ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True), "kid": "private"},
        RSA.jwk(kid=7),
        RSA.jwk(n=None),
        RSA.jwk(n=5),
        RSA.jwk(n="!"),
        RSA.jwk(n="\ud800"),
        RSA.jwk(n=""),
        RSA.jwk(e=b64(b"\xff" * 3000)),
        RSA.jwk(e="AA"),
        P256.jwk(alg="ES384"),
        P256.jwk(crv="P-384", alg=None),
        P256.jwk(crv=["P-256"]),
        P256.jwk(x=P256.jwk()["y"]),
        P256.jwk(crv="brainpoolP256r1", alg=None),
        ED25519.jwk(x="AAAA"),
        {"kty": "oct", "kid": "k", "alg": "HS256", "k": b64(b"secret" * 10)},
        {"kty": "oct", "kid": "k", "alg": "RS256", "k": b64(b"secret" * 10)},
        {"kty": {}},
        {},
        [],
        None,
        "key",
    ],
)
def test_an_unusable_entry_is_left_out_and_spoils_nothing(entry: object) -> None:
    keys = parse(entry, P521.jwk(), entry)
    assert [key.key_id for key in keys.usable] == ["ES512"]


def test_an_rsa_key_below_2048_bits_is_left_out() -> None:
    short = SigningKey("short", "RS256", rsa.generate_private_key(public_exponent=65537, key_size=1024))
    assert parse(short.jwk()).usable == ()


def test_a_token_without_key_id_gets_a_key_only_when_no_other_fits() -> None:
    assert parse(RSA.jwk(), P256.jwk()).find(None, "RS256") is not None
    assert parse(RSA.jwk(kid=None)).find(None, "RS256") is not None
    assert parse(RSA.jwk(), signing_key("other").jwk()).find(None, "RS256") is None
    assert parse(P256.jwk()).find(None, "RS256") is None


def test_equal_key_ids_of_different_kinds_are_told_apart_by_algorithm() -> None:
    keys = parse(RSA.jwk(kid="same"), P521.jwk(kid="same"))
    found = keys.find("same", "ES512")
    assert found is not None
    assert found.public == P521.private.public_key()


def test_key_sets_are_equal_when_they_hold_the_same_keys() -> None:
    assert parse(RSA.jwk()) == parse(RSA.jwk(x5t="changed"))
    assert parse(RSA.jwk()) != parse(signing_key("other").jwk(kid=RSA.key_id))


@pytest.mark.parametrize("document", [b"", b"\xff", b"null", b"[]", b'{"keys": null}', b'{"keys": {}}', b"[" * 10**5])
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(KeySetUnusable):
        Keys.parse(document)


@given(st.sampled_from([RSA, P256, P521, ED25519]), st.data())
def test_any_change_to_an_entry_leaves_the_other_keys_usable(key: SigningKey, data: st.DataObject) -> None:
    entry: dict[str, Any] = key.jwk()
    for member in data.draw(st.lists(st.sampled_from([*entry, "key_ops", "d"]), min_size=1, max_size=2)):
        entry[member] = data.draw(any_json | st.binary(max_size=80).map(b64))
    assert "ES384" in {found.key_id for found in parse(entry, P384.jwk()).usable}
