"""Tokens bent in every way that we know of: what PyJWT's `decode` refuses is refused here as well.

And nothing else is refused, but for what `beyond_pyjwt` names.
"""

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any, get_args

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed448, rsa
from hypothesis import example, given
from hypothesis import strategies as st

from gateway import config
from gateway.clock import SystemClock
from gateway.errors import Unauthorized
from gateway.identity.keys import Key, Keys
from gateway.identity.peek import Peeked, peek
from gateway.identity.verify import verify
from tests.identity_provider import SigningKey, any_json, b64, key_set, signing_key

ALGORITHMS = get_args(config.Algorithm)
# Whole seconds, and a leeway that ends long after these tests: PyJWT reads the clock itself, and cuts fractions off.
NOW = int(SystemClock().now())
LEEWAY = "300s"
ISSUER = "https://idp.example"
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": ["other", "gw"], "sub": "user-1", "exp": NOW + 3600, "iat": NOW - 3600}
DATES = ("exp", "nbf", "iat")
PYJWT = jwt.PyJWT({"require": ["iss", "exp"], "enforce_minimum_key_length": True})
ED448 = SigningKey("k1", "EdDSA", ed448.Ed448PrivateKey.generate())
KEYS = [*(signing_key("k1", algorithm) for algorithm in ALGORITHMS), ED448]


def published(key: SigningKey) -> Key:
    (found,) = Keys.parse(key_set(key)).usable
    return found


def ours(token: str, key: Key, issuer: config.Issuer) -> dict[str, Any] | None:
    """Return the claims of a token that the gateway accepts."""
    try:
        read = peek(token)
        return verify(read, key, issuer=issuer, now=SystemClock().now()).claims if isinstance(read, Peeked) else None
    except Unauthorized:
        return None


def pyjwts(token: str, key: Key, issuer: config.Issuer) -> dict[str, Any] | None:
    """Return the claims of a token that PyJWT accepts, all its checks switched on."""
    algorithms = [name for name in issuer.algorithms if name in key.algorithms]
    try:
        return PYJWT.decode(
            token, key.public, algorithms=algorithms, issuer=ISSUER, audience=issuer.audience, leeway=issuer.leeway
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return None


def beyond_pyjwt(token: str) -> bool:
    """Whether a token has an oddity that PyJWT lets pass and we do not."""
    if "=" in token:  # padding, which RFC 7515 section 2 leaves out
        return True
    try:
        header, claims = map(_strict, token.split(".")[:2])
    except ValueError:
        return True
    aud = claims.get("aud")
    return (
        "crit" in header
        or "b64" in header
        or any(isinstance(claims.get(name), str | bool) for name in DATES)
        or (aud is not None and not aud and aud != [])
    )


def _strict(part: str) -> dict[str, Any]:
    """Read JSON that all readers understand alike: in UTF-8, of unique names, whole characters, few levels, no NaN."""
    text = base64.urlsafe_b64decode(part + "==").decode()
    value: dict[str, Any] = json.loads(text, object_pairs_hook=_unique, parse_constant=_none)
    json.dumps(value, ensure_ascii=False).encode()
    if "[" * 200 in text:
        raise ValueError
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


def _none(constant: str) -> None:
    raise ValueError(constant)


def agree(token: str, key: Key, issuer: config.Issuer) -> None:
    """Hold our word on a token against PyJWT's."""
    accepted, expected = ours(token, key, issuer), pyjwts(token, key, issuer)
    if accepted is not None:
        assert accepted == expected
    else:
        assert expected is None or beyond_pyjwt(token)


def issuer_of(key: SigningKey, **settings: Any) -> config.Issuer:
    entry = {"issuer": ISSUER, "jwks": "keys.json", "algorithms": [key.algorithm], "audience": "gw", "leeway": LEEWAY}
    return config.Issuer(**{**entry, **settings})


keys = st.sampled_from(KEYS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.algorithm} {type(key.private).__name__}")
def test_both_accept_a_good_token(key: SigningKey) -> None:
    token, found = key.token(CLAIMS), published(key)
    assert ours(token, found, issuer_of(key)) == pyjwts(token, found, issuer_of(key)) == CLAIMS


_names = st.sampled_from(["alg", "kid", "typ", "cty", "crit", "b64", "zip", "jwk", "x5c"])
_algorithms = st.sampled_from([*ALGORITHMS, "HS256", "HS384", "HS512", "none", "None", "ES521", "rs256", "RS256 ", ""])
_members = st.dictionaries(_names, any_json | st.just(["b64"]) | st.booleans(), max_size=2)


@given(key=keys, header=_members, algorithm=st.none() | _algorithms, allowed=st.sets(st.sampled_from(ALGORITHMS)))
@example(key=KEYS[0], header={"crit": ["b64"], "b64": True}, algorithm=None, allowed=set())
@example(key=KEYS[0], header={"b64": False}, algorithm=None, allowed=set())
@example(key=KEYS[0], header={"kid": None}, algorithm=None, allowed=set())
def test_headers_agree(key: SigningKey, header: dict[str, Any], algorithm: str | None, allowed: set[str]) -> None:
    header = {"alg": key.algorithm, **header} | ({} if algorithm is None else {"alg": algorithm})
    token = key.raw("  " + json.dumps(header), json.dumps(CLAIMS))
    agree(token, published(key), issuer_of(key, algorithms=[key.algorithm, *allowed - {key.algorithm}]))


_date = (
    st.sampled_from([0, -1, 7200, -7200]).map(lambda seconds: NOW + seconds) | any_json | st.sampled_from(["1", True])
)
_aud = st.sampled_from(["gw", "gw2", "", [], ["gw"], ["gw", 1], [["gw"]], {"gw": 1}, 0, None, "g"])


_words = st.sampled_from([ISSUER, ISSUER + "/", [ISSUER], "", 7, None, True]) | any_json
_claims = st.lists(
    st.tuples(st.sampled_from(DATES), _date)
    | st.tuples(st.sampled_from(["iss", "sub", "jti"]), _words)
    | st.tuples(st.just("aud"), _aud | any_json),
    max_size=2,
).map(dict)


@given(
    key=keys,
    claims=_claims,
    dropped=st.sets(st.sampled_from([*CLAIMS]), max_size=1),
    audience=st.sampled_from([None, "gw", ("a", "gw"), ("a",)]),
)
@example(key=KEYS[0], claims={"aud": ["gw", 1]}, dropped=set(), audience="gw")
def test_claims_agree(
    key: SigningKey, claims: dict[str, Any], dropped: set[str], audience: str | tuple[str, ...] | None
) -> None:
    claims = {name: value for name, value in (CLAIMS | claims).items() if name not in dropped}
    agree(key.token(claims), published(key), issuer_of(key, audience=audience))


# JSON that some readers take for the same object, and some do not.
_writings = st.sampled_from(
    [
        lambda text: text.replace("{", '{"alg":"none","iss":"https://evil.example","sub":"root",', 1),
        lambda text: text.replace("{", '{"\\u0061lg":"none","\\u0073ub":"root",', 1),
        lambda text: text[:-1] + ',"alg":"HS256","sub":"root"}',
        lambda text: f"\ufeff{text}",
        lambda text: f" \n\t{text}\r ",
        lambda text: f"{text}\0",
        lambda text: f"{text}{text}",
        lambda text: text[:-1],
        lambda text: text[:-1] + ",}",
        lambda text: text[:-1] + ',"x":NaN}',
        lambda text: text[:-1] + ',"x":1e999}',
        lambda text: text[:-1] + ',"x":"\\ud800"}',
        lambda text: text[:-1] + ',"x":"\ud800"}',
        lambda text: text[:-1] + ',"x":' + "[" * 300 + "]" * 300 + "}",
        lambda text: text[:-1] + ',"x":' + "1" * 5000 + "}",
        lambda text: f"[{text}]",
        lambda text: text and "null",
    ]
)


@given(key=keys, of_header=st.none() | _writings, of_claims=st.none() | _writings)
def test_ways_of_writing_json_agree(
    key: SigningKey, of_header: Callable[[str], str] | None, of_claims: Callable[[str], str] | None
) -> None:
    header, claims = json.dumps({"alg": key.algorithm, "kid": "k1"}), json.dumps(CLAIMS)
    parts = [write(text) if write else text for write, text in ((of_header, header), (of_claims, claims))]
    agree(signed(key, *(part.encode("utf-8", "surrogatepass") for part in parts)), published(key), issuer_of(key))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_other_encodings_of_text_are_refused(encoding: str) -> None:
    key = KEYS[0]
    header, claims = json.dumps({"alg": key.algorithm}), json.dumps(CLAIMS | {"sub": "\xe9"}, ensure_ascii=False)
    token = signed(key, header.encode(), claims.encode(encoding))
    agree(token, published(key), issuer_of(key))
    assert ours(token, published(key), issuer_of(key)) is None


def signed(key: SigningKey, header: bytes, claims: bytes) -> str:
    text = f"{b64(header)}.{b64(claims)}"
    return f"{text}.{b64(jwt.get_algorithm_by_name(key.algorithm).sign(text.encode(), key.private))}"


@given(key=keys, data=st.data())
def test_changed_characters_agree(key: SigningKey, data: st.DataObject) -> None:
    """Cropped, padded, spaced, spelt otherwise: a part is changed, and perhaps the token is signed as it then is."""
    parts = key.token(CLAIMS).split(".")
    which = data.draw(st.integers(0, 2))
    at = data.draw(st.integers(0, len(parts[which])) | st.just(len(parts[which])) | st.just(len(parts[which]) - 1))
    cut = data.draw(st.integers(0, 3))
    put = data.draw(st.text("AQgwZ_-+/=. \t\n\0\xe9", max_size=3))
    parts[which] = parts[which][:at] + put + parts[which][at + cut :]
    if which < 2 and data.draw(st.booleans()):
        parts[2] = b64(jwt.get_algorithm_by_name(key.algorithm).sign(".".join(parts[:2]).encode(), key.private))
    agree(".".join(parts), published(key), issuer_of(key))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.algorithm} {type(key.private).__name__}")
def test_no_part_has_a_second_spelling(key: SigningKey) -> None:
    """The last character of a part may have bits that encode nothing: any but zeros would be a token of other text."""
    parts = key.token(CLAIMS | {"pad": "x"}).split(".")
    for which, part in enumerate(parts):
        for last in _ALPHABET.replace(part[-1], ""):
            changed = [*parts[:which], part[:-1] + last, *parts[which + 1 :]]
            token = ".".join(changed)
            assert ours(token, published(key), issuer_of(key)) is None
            assert pyjwts(token, published(key), issuer_of(key)) is None


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@given(signer=keys, verifier=keys, declared=_algorithms)
def test_keys_of_other_kinds_agree(signer: SigningKey, verifier: SigningKey, declared: str) -> None:
    """A key is asked to verify what another one signed, by an algorithm that is neither's."""
    token = signer.token(CLAIMS, alg=declared)
    issuer = issuer_of(verifier, algorithms=ALGORITHMS)
    agree(token, published(verifier), issuer)
    # Though the key set said that a key verifies everything: its kind and its curve still tell.
    agree(token, Key("k1", ALGORITHMS, published(verifier).public), issuer)


@pytest.mark.parametrize("digest", ["sha256", "sha384", "sha512"])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.algorithm} {type(key.private).__name__}")
def test_a_public_key_is_no_shared_secret(key: SigningKey, digest: str) -> None:
    public = key.private.public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    secrets = [public.public_bytes(encoding, form) for encoding in (PEM, DER)]
    for secret in [*secrets, secrets[0].strip(), json.dumps(key.jwk()).encode(), b""]:
        text = f"{b64(json.dumps({'alg': 'HS' + digest[3:], 'kid': 'k1'}).encode())}.{b64(json.dumps(CLAIMS).encode())}"
        token = f"{text}.{b64(hmac.new(secret, text.encode(), digest).digest())}"
        for found in (published(key), Key("k1", (*ALGORITHMS, "HS256", "HS384", "HS512"), published(key).public)):
            assert ours(token, found, issuer_of(key, algorithms=ALGORITHMS)) is None
            assert pyjwts(token, found, issuer_of(key, algorithms=ALGORITHMS)) is None


PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER


def test_a_short_rsa_key_verifies_nothing() -> None:
    short = SigningKey("k1", "RS256", rsa.generate_private_key(public_exponent=65537, key_size=1024))
    found = Key("k1", ("RS256",), short.private.public_key())
    assert Keys.parse(key_set(short)).usable == ()
    assert ours(short.token(CLAIMS), found, issuer_of(short)) is None
    assert pyjwts(short.token(CLAIMS), found, issuer_of(short)) is None
