"""An API key -> its principal. What the config holds of each key is its SHA-256, and that is all that is known here.

A key is looked up by its digest, in a dict. The time that takes can tell of nothing but digests, and whoever learnt a
digest to the last bit would still have to find a text that has it: of 256 random bits nobody does.
"""

import hashlib
import math
import secrets
from collections.abc import Iterable

from gateway import config
from gateway.errors import ExpiredToken
from gateway.identity.accepted import Accepted
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused

_RANDOM_BYTES = 32


class ApiKeys:
    """The keys of the config."""

    def __init__(self, entries: Iterable[config.ApiKey]) -> None:
        self._known = {bytes.fromhex(one.sha256): _accepted(one) for one in entries}

    def __len__(self) -> int:
        return len(self._known)

    def claims(self, token: str) -> bool:
        """Whether this token is a key, if anything: whatever begins so is for nobody else, where there are keys."""
        return token.startswith(config.API_KEY_PREFIX) and bool(self._known)

    def accept(self, token: str, *, now: float) -> Accepted:
        """Return whose key this is.

        Raises:
            TokenRefused: `api_key`, because it is none.
            ExpiredToken: its time is over.
        """
        known = self._known.get(hashlib.sha256(token.encode()).digest())
        if known is None:
            raise TokenRefused("api_key")
        if known.until <= now:
            raise ExpiredToken("The API key has expired. Ask whoever gave it to you for another.")
        return known


def _accepted(entry: config.ApiKey) -> Accepted:
    until = math.inf if entry.expires is None else entry.expires
    return Accepted(Principal(entry.tenant, entry.key, entry.plan, entry.models), until, None)


def generate() -> tuple[str, str]:
    """Return a new key of 256 random bits, and its SHA-256 in hexadecimal digits."""
    key = config.API_KEY_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return key, hashlib.sha256(key.encode()).hexdigest()
