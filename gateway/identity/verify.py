"""A token and its issuer's key -> verified claims. Pure: the time is a number that comes in.

The signature, `iss` and `aud` are PyJWT's work. The dates are ours: PyJWT reads the clock itself, and takes strings and
booleans for dates.
"""

import math
from dataclasses import dataclass
from typing import Any

import jwt

from gateway import config
from gateway.errors import ExpiredToken
from gateway.identity.keys import Key
from gateway.identity.refused import Reason, TokenRefused

_JWT = jwt.PyJWT(
    {
        "require": ["iss", "exp"],
        "verify_exp": False,
        "verify_nbf": False,
        "verify_iat": False,
        "enforce_minimum_key_length": True,
    }
)


@dataclass(frozen=True, slots=True)
class Verified:
    """The claims of a genuine token, and until when (seconds since the epoch) it counts as one."""

    claims: dict[str, Any]
    until: float


def verify(token: str, key: Key, *, issuer: config.Issuer, now: float) -> Verified:
    """Check everything that the issuer's entry asks of a token.

    A token with an `aud` is refused where no `audience` is configured: it was made for somebody else (RFC 7519
    section 4.1.3). `exp` comes last, so that ExpiredToken means a token that was good once.

    Raises:
        TokenRefused: the reason tells what did not hold.
        ExpiredToken: nothing is wrong with the token but its age.
    """
    return check(_decode(token, key, issuer), issuer=issuer, now=now)


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


def expired() -> ExpiredToken:
    """Return the refusal of a token that is good but for its age."""
    return ExpiredToken("The token has expired. Get a fresh one from the identity provider.")


def _decode(token: str, key: Key, issuer: config.Issuer) -> dict[str, Any]:
    reason: Reason = "malformed"
    try:
        return _JWT.decode(
            token,
            key.public,
            algorithms=[name for name in issuer.algorithms if name in key.algorithms],
            issuer=issuer.issuer,
            audience=issuer.audience,
        )
    except jwt.InvalidSignatureError:
        reason = "signature"
    except jwt.InvalidAudienceError:
        reason = "audience"
    except jwt.MissingRequiredClaimError as error:
        reason = "audience" if error.claim == "aud" else "required_claim"
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):  # it does not wrap all that it meets
        reason = "malformed"
    raise TokenRefused(reason)


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
