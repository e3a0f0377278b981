"""Tokens that were verified before -> their Principal, until they expire or their issuer's keys change.

Verifying costs 40 µs (RS256) to 450 µs (ES512), remembering 1 µs. Of a token only the full SHA-256 of its header is
kept: memory holds no token, and no two share an entry. Refused tokens are not remembered: one that becomes valid
later must not be locked out. Those that are good but denied are, so that whoever was revoked costs little by asking on.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gateway.identity.accepted import Accepted
from gateway.identity.denied import NOBODY, Denied
from gateway.identity.keys import Keys
from gateway.identity.keyset import KeySet
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused

# Passports live 60 s: enough for 1,000 new ones a second. Measured 0.5 KB an entry: 33 MB when full.
CAPACITY = 65_536


# Before the first generation.
_NEVER = -1


@dataclass(slots=True)
class _Entry:
    principal: Principal
    until: float
    key_set: "KeySet | _NoKeySet"
    keys: Keys | None
    generation: int  # of the `deny` by which it was found not denied


class _NoKeySet:
    """What stands for the key set of a token that no key of its issuer signed: it never changes."""

    keys: None = None


_NO_KEY_SET = _NoKeySet()


class Remembered:
    """At most `capacity` tokens by digest; the one remembered first goes first. `denied` are refused from the start."""

    def __init__(self, *, capacity: int = CAPACITY, denied: Denied = NOBODY) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._denied = denied
        self._generation = 0

    def emptied(self) -> "Remembered":
        """Return one that remembers no token, and denies the same."""
        return Remembered(capacity=self._capacity, denied=self._denied)

    def deny(self, denied: Denied) -> None:
        """Refuse from now on those who are `denied`, and nobody else.

        Each is looked at when it is next asked for: all of them at once would hold up the event loop for 40 ms.
        """
        self._denied = denied
        self._generation += 1

    def get(self, digest: bytes, now: float) -> Principal | None:
        """Return the principal, if the token is known, unexpired, and its issuer's keys are what they were.

        Raises:
            TokenRefused: `revoked`, because it is denied.
        """
        entry = self._entries.get(digest)
        if entry is None:
            return None
        if now < entry.until and entry.keys is entry.key_set.keys:
            return entry.principal if entry.generation == self._generation else self._undenied(entry)
        del self._entries[digest]
        return None

    def put(self, digest: bytes, accepted: Accepted) -> Principal:
        """Remember a token that was accepted just now, with the keys that its issuer has now. Return its principal.

        Raises:
            TokenRefused: `revoked`, because it is denied. It is remembered all the same.
        """
        key_set = accepted.key_set or _NO_KEY_SET
        entry = self._entries[digest] = _Entry(accepted.principal, accepted.until, key_set, key_set.keys, _NEVER)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return self._undenied(entry)

    def _undenied(self, entry: _Entry) -> Principal:
        if self._denied.has(entry.principal):
            raise TokenRefused("revoked")
        entry.generation = self._generation
        return entry.principal
