"""A token and a key -> verified claims: dates, audience, required values. Real signatures throughout."""

from typing import Any, get_args

import pytest

from gateway import config
from gateway.errors import ExpiredToken, Unauthorized
from gateway.identity.keys import Keys
from gateway.identity.peek import Peeked, peek
from gateway.identity.refused import TokenRefused, reason_of
from gateway.identity.verify import Verified, verify
from tests.identity_provider import SigningKey, key_set, signing_key

NOW = 1_800_000_000.0
ISSUER = "https://idp.example"
P256 = signing_key("k1", "ES256")


def issuer(**settings: Any) -> config.Issuer:
    return config.Issuer(**{"issuer": ISSUER, "jwks": "keys.json", "leeway": "5s", **settings})


def check(token: str, *, by: config.Issuer | None = None, key: SigningKey = P256) -> Verified:
    found = Keys.parse(key_set(key)).find(key.key_id, key.algorithm)
    assert found is not None
    read = peek(token)
    if not isinstance(read, Peeked):
        raise TokenRefused("malformed")
    return verify(read, found, issuer=by or issuer(), now=NOW)


def outcome(claims: dict[str, object], **settings: Any) -> str:
    try:
        check(P256.token({"iss": ISSUER, "exp": NOW + 60, **claims}), by=issuer(**settings))
    except Unauthorized as error:
        return reason_of(error)
    return "ok"


@pytest.mark.parametrize("algorithm", get_args(config.Algorithm))
def test_every_asymmetric_algorithm_verifies(algorithm: str) -> None:
    key = signing_key("k1", algorithm)
    verified = check(key.token({"iss": ISSUER, "exp": NOW + 60}), by=issuer(algorithms=[algorithm]), key=key)
    assert verified == Verified({"iss": ISSUER, "exp": NOW + 60}, until=NOW + 65)


def test_a_passport_is_told_from_an_id_token_of_the_same_issuer() -> None:
    passports = issuer(issuer="uni-identity", algorithms=["ES512"], require={"typ": "passport"})
    key = signing_key("k1", "ES512")
    claims = {"iss": "uni-identity", "exp": NOW + 60, "sub": "a@example.com", "acctype": "user", "org_ids": ["o"]}
    assert check(key.token({**claims, "typ": "passport"}), by=passports, key=key).claims["sub"] == "a@example.com"
    with pytest.raises(TokenRefused) as refused:
        check(key.token(claims), by=passports, key=key)
    assert refused.value.reason == "required_claim"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": NOW - 4.5}, "ok"),
        ({"exp": NOW - 5}, "expired_token"),
        ({"exp": NOW - 3600}, "expired_token"),
        ({"exp": 0}, "expired_token"),
        ({"exp": -1}, "expired_token"),
        ({"exp": 1e300}, "ok"),
        ({"iat": NOW + 2, "nbf": NOW + 2}, "ok"),
        ({"iat": NOW + 5, "nbf": NOW + 5.0}, "ok"),
        ({"iat": NOW + 60}, "not_yet_valid"),
        ({"nbf": NOW + 60}, "not_yet_valid"),
        ({"nbf": NOW + 5.1}, "not_yet_valid"),
    ],
)
def test_dates_hold_within_the_leeway(claims: dict[str, object], expected: str) -> None:
    assert outcome(claims) == expected


def test_a_token_without_expiry_is_refused() -> None:
    with pytest.raises(TokenRefused) as refused:
        check(P256.token({"iss": ISSUER}))
    assert refused.value.reason == "required_claim"


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "date",
    [
        "Infinity",
        "-Infinity",
        "NaN",
        "1e400",
        "true",
        "false",
        "[1]",
        "{}",
        "null",
        '"1900000000"',
        "9" * 400,
        "9" * 5000,
    ],
)
def test_what_is_no_date_is_refused(claim: str, date: str) -> None:
    members = {"iss": f'"{ISSUER}"', "exp": str(NOW + 60), claim: date}
    payload = "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"
    with pytest.raises(TokenRefused):
        check(P256.raw('{"alg":"ES256","kid":"k1"}', payload))


@pytest.mark.parametrize(
    ("audience", "aud", "expected"),
    [
        ("gw", "gw", "ok"),
        ("gw", ["other", "gw"], "ok"),
        (("a", "gw"), "gw", "ok"),
        ("gw", "other", "audience"),
        ("gw", ["other"], "audience"),
        ("gw", "gw2", "audience"),
        ("gw", [], "audience"),
        ("gw", [["gw"]], "audience"),
        ("gw", {"gw": 1}, "audience"),
        ("gw", 1, "audience"),
        (None, "anybody", "audience"),
        (None, [], "ok"),
    ],
)
def test_the_audience_is_matched_by_membership(audience: object, aud: object, expected: str) -> None:
    assert outcome({"aud": aud}, audience=audience) == expected


def test_a_configured_audience_must_be_there() -> None:
    assert outcome({}, audience="gw") == "audience"


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        ("passport", "passport", "ok"),
        ("passport", "Passport", "required_claim"),
        ("passport", ["passport"], "required_claim"),
        (True, True, "ok"),
        (True, 1, "required_claim"),
        (1, 1, "ok"),
        (1, True, "required_claim"),
        (1, 1.0, "required_claim"),
        (0, None, "required_claim"),
    ],
)
def test_required_claims_equal_in_value_and_type(wanted: object, value: object, expected: str) -> None:
    assert outcome({"c": value}, require={"c": wanted}) == expected


def test_a_required_claim_must_be_there() -> None:
    assert outcome({}, require={"typ": "passport"}) == "required_claim"


def test_the_key_and_the_issuer_that_were_chosen_are_held_to() -> None:
    """Whoever chooses them by what a token says of itself must be able to choose wrongly."""
    rsa = signing_key("k1", "RS256")
    by = issuer(algorithms=["RS256", "PS256"])
    with pytest.raises(TokenRefused):
        check(rsa.token({"iss": ISSUER, "exp": NOW + 60}), by=by, key=SigningKey("k1", "PS256", rsa.private))
    with pytest.raises(TokenRefused):
        check(rsa.token({"iss": ISSUER, "exp": NOW + 60}), by=issuer(algorithms=["PS256"]), key=rsa)
    with pytest.raises(TokenRefused):
        check(rsa.token({"iss": ISSUER + "/", "exp": NOW + 60}), by=by, key=rsa)


def test_only_a_token_that_was_good_once_is_called_expired() -> None:
    assert outcome({"exp": NOW - 60}, require={"typ": "passport"}) == "required_claim"
    forged = P256.token({"iss": ISSUER, "exp": NOW - 60})[:-8] + "AAAAAAAA"
    with pytest.raises(TokenRefused) as refused:
        check(forged)
    assert refused.value.reason == "signature"
    with pytest.raises(ExpiredToken) as expired:
        check(P256.token({"iss": ISSUER, "exp": NOW - 60}))
    assert 'error="invalid_token"' in expired.value.headers["WWW-Authenticate"]
