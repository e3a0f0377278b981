"""The bytes of a JWK Set (RFC 7517) -> the public keys in it that can verify a signature. No I/O.

One entry that we cannot use never spoils the rest. Shared secrets and private keys are no keys to us: whoever can read
the set could sign with them.
"""

import json
from dataclasses import dataclass
from typing import Any, Self

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import AllowedPublicKeys

# Which signatures a key can verify, by its `kty` and `crv`. A P-521 key never verifies ES256, whatever its `alg` says.
_FAMILIES: dict[tuple[object, object], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("EC", "secp256k1"): ("ES256K",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}


class KeySetUnusable(Exception):
    """A key set could not be had, or is none. The message says what was read and what was expected of it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One public key: its id, the algorithms it may verify, and the key itself. Equal keys are the same key."""

    key_id: str | None
    algorithms: tuple[str, ...]
    public: AllowedPublicKeys


@dataclass(frozen=True, slots=True)
class Keys:
    """The usable keys of one key set."""

    usable: tuple[Key, ...]

    @classmethod
    def parse(cls, document: bytes) -> Self:
        """Read a JWK Set. An empty one is valid: its issuer has withdrawn every key.

        Raises:
            KeySetUnusable: the document is not an object with a list `keys`.
        """
        try:
            tree = json.loads(document)
        except (ValueError, RecursionError) as error:
            raise KeySetUnusable("the document is not JSON; expected a JWK Set") from error
        entries = tree.get("keys") if isinstance(tree, dict) else None
        if not isinstance(entries, list):
            raise KeySetUnusable("the document is not a JWK Set; expected an object with a list named keys")
        return cls(tuple(key for key in map(_key, entries) if key is not None))

    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        """Return the key for a token's `kid` and `alg`. A token without `kid` gets a key only if no other would fit."""
        fitting = [key for key in self.usable if algorithm in key.algorithms]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.key_id == key_id), None)


def _key(entry: object) -> Key | None:
    if not isinstance(entry, dict) or not _verifies(entry):
        return None
    key_id, declared = entry.get("kid"), entry.get("alg")
    shape = (entry.get("kty"), entry.get("crv"))
    if not (key_id is None or isinstance(key_id, str)) or not all(isinstance(word, str | None) for word in shape):
        return None
    algorithms = tuple(name for name in _FAMILIES.get(shape, ()) if declared in (None, name))
    public = _public(entry, algorithms[0]) if algorithms else None
    return None if public is None else Key(key_id, algorithms, public)


def _verifies(entry: dict[str, Any]) -> bool:
    """Whether an entry is meant for checking signatures, and is public."""
    operations = entry.get("key_ops")
    return (
        entry.get("use") in (None, "sig")
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
        and "d" not in entry
    )


def _public(entry: dict[str, Any], algorithm: str) -> AllowedPublicKeys | None:
    try:
        jwk = jwt.PyJWK(entry, algorithm)
    except (jwt.PyJWTError, UnsupportedAlgorithm):
        return None
    too_short = jwk.Algorithm.check_key_length(jwk.key)  # RSA below 2048 bits (NIST SP 800-131A)
    return None if too_short else jwk.key
