"""A token as it was read, and its issuer's key -> verified claims. Pure: the time is a number that comes in.

The signature is PyJWT's work, algorithm by algorithm. Reading and the claims are ours: PyJWT looks at each character of
a token in Python (40 µs), reads the clock itself, and takes strings and booleans for dates. What PyJWT would refuse is
refused here as well.
"""

import math
from dataclasses import dataclass
from typing import Any, get_args

import jwt

from gateway import config
from gateway.errors import ExpiredToken
from gateway.identity.keys import Key
from gateway.identity.peek import Peeked
from gateway.identity.refused import TokenRefused

# No other is within reach, shared secrets and `none` least of all.
_ALGORITHMS = jwt.PyJWS(algorithms=get_args(config.Algorithm))


@dataclass(frozen=True, slots=True)
class Verified:
    """The claims of a genuine token, and until when (seconds since the epoch) it counts as one."""

    claims: dict[str, Any]
    until: float


def verify(token: Peeked, key: Key, *, issuer: config.Issuer, now: float) -> Verified:
    """Check everything that the issuer's entry asks of a token.

    A token with an `aud` is refused where no `audience` is configured: it was made for somebody else (RFC 7519
    section 4.1.3). `exp` comes last, so that ExpiredToken means a token that was good once.

    Raises:
        TokenRefused: the reason tells what did not hold.
        ExpiredToken: nothing is wrong with the token but its age.
    """
    if token.algorithm not in issuer.algorithms or token.algorithm not in key.algorithms:
        raise TokenRefused("algorithm")
    _check_signature(token, key)
    _check_registered(token.claims, issuer)
    return check(token.claims, issuer=issuer, now=now)


def check(claims: dict[str, Any], *, issuer: config.Issuer, now: float) -> Verified:
    """Check the dates and the required values of claims whose source is beyond doubt. Without `exp` they never expire.

    Raises:
        TokenRefused, ExpiredToken: as `verify`.
    """
    latest = now + issuer.leeway
    if any(name in claims and _date(claims[name]) > latest for name in ("nbf", "iat")):
        raise TokenRefused("not_yet_valid")
    until = _date(claims["exp"]) + issuer.leeway if "exp" in claims else math.inf
    for name, value in issuer.require.items():
        # In Python True == 1 == 1.0; in JSON they are three values.
        if name not in claims or type(claims[name]) is not type(value) or claims[name] != value:
            raise TokenRefused("required_claim")
    if until <= now:
        raise expired()
    return Verified(claims, until)


def meant_for(aud: object, audience: str | tuple[str, ...] | None) -> bool:
    """Whether a token of this `aud` may be used here: by membership; without a configured one it must have none."""
    named = aud if isinstance(aud, list) else [] if aud is None else [aud]
    if audience is None or not all(isinstance(one, str) for one in named):
        return audience is None and not named
    wanted = (audience,) if isinstance(audience, str) else audience
    return any(one in named for one in wanted)


def expired() -> ExpiredToken:
    """Return the refusal of a token that is good but for its age."""
    return ExpiredToken("The token has expired. Get a fresh one from the identity provider.")


def _check_signature(token: Peeked, key: Key) -> None:
    algorithm = _ALGORITHMS.get_algorithm_by_name(token.algorithm)
    try:
        public = algorithm.prepare_key(key.public)
    except (jwt.InvalidKeyError, TypeError) as error:  # of another kind, or on another curve
        raise TokenRefused("malformed") from error
    if algorithm.check_key_length(public) is not None:
        raise TokenRefused("malformed")
    if not algorithm.verify(token.signing_input, public, token.signature):
        raise TokenRefused("signature")


def _check_registered(claims: dict[str, Any], issuer: config.Issuer) -> None:
    """Check the claims that RFC 7519 section 4.1 gives a meaning, but for the dates."""
    if claims.get("exp") is None or claims.get("iss") is None:
        raise TokenRefused("required_claim")
    if claims["iss"] != issuer.issuer or not all(isinstance(claims.get(name, ""), str) for name in ("sub", "jti")):
        raise TokenRefused("malformed")
    if not meant_for(claims.get("aud"), issuer.audience):
        raise TokenRefused("audience")


def _date(value: object) -> float:
    """Return a NumericDate (RFC 7519 section 2) in seconds; anything but a finite number is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if math.isfinite(seconds):
            return seconds
    raise TokenRefused("malformed")
