"""What an issuer's word on a bearer token amounts to: whose it is, and how long that may be relied on. Times decide."""

from dataclasses import dataclass

from gateway.identity.keys import Key
from gateway.identity.principal import Principal

# The part of its time after which a grant is asked for again: a passport of 60 s, good for 50, has three tries of 5 s
# before anybody must wait.
RENEW_AT = 0.7
# A passport is not used in its last seconds, so that a clock that is a little off does no harm, unless its issuer
# cannot be asked; of one that lives shorter, not in its second half.
MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Grant:
    """Whose a token is, and three dates in seconds since the epoch.

    From `renew_at` on it is asked about again in the background, from `until` on a call waits for the new answer;
    beyond `bound` this one is never used. `key` is what signed it, if a key did.
    """

    principal: Principal
    renew_at: float
    until: float
    bound: float
    key: Key | None = None


def for_passport(principal: Principal, key: Key, *, now: float, expires_at: float) -> Grant:
    """Return the grant of a passport that was received just now."""
    until = expires_at - min(MARGIN_S, max(0.0, expires_at - now) / 2)
    return Grant(principal, now + RENEW_AT * (until - now), until, bound=expires_at, key=key)


def for_a_while(principal: Principal, *, now: float, until: float) -> Grant:
    """Return the grant of an answer that may be relied on until then."""
    return Grant(principal, now + RENEW_AT * (until - now), until, bound=until)
