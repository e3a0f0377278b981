"""The bytes of a JWK Set (RFC 7517) -> the public keys in it that can verify a signature. No I/O.

One entry that we cannot use never spoils the rest. Shared secrets and private keys are no keys to us: whoever can read
the set could sign with them.
"""

import json
from dataclasses import dataclass
from typing import Any, Self, get_args

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import AllowedPublicKeys

from gateway import config

# No other is within reach, shared secrets and `none` least of all.
_SIGNATURES = jwt.PyJWS(algorithms=get_args(config.Algorithm))
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
    """One public key: its id, the algorithms it may verify, and the key itself. Equal keys are the same key.

    Of `algorithms` it keeps those that its kind, its curve and its length are good for.
    """

    key_id: str | None
    algorithms: tuple[str, ...]
    public: AllowedPublicKeys

    def __post_init__(self) -> None:
        """Let no algorithm stay that the key is not for: it is asked with each token, and this only now."""
        good = tuple(name for name in self.algorithms if _good_for(name, self.public))
        object.__setattr__(self, "algorithms", good)

    def verifies(self, algorithm: str, text: bytes, signature: bytes) -> bool:
        """Whether this is the key's own signature of the text, by one of its algorithms. The work is PyJWT's."""
        if algorithm not in self.algorithms:
            return False
        return _SIGNATURES.get_algorithm_by_name(algorithm).verify(text, self.public, signature)


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
        if key_id is not None:
            for key in self.usable:
                if key.key_id == key_id and algorithm in key.algorithms:
                    return key
            return None
        fitting = [key for key in self.usable if algorithm in key.algorithms]
        return fitting[0] if len(fitting) == 1 else None


def _key(entry: object) -> Key | None:
    if not isinstance(entry, dict) or not _verifies(entry):
        return None
    key_id, declared = entry.get("kid"), entry.get("alg")
    shape = (entry.get("kty"), entry.get("crv"))
    if not (key_id is None or isinstance(key_id, str)) or not all(isinstance(word, str | None) for word in shape):
        return None
    algorithms = tuple(name for name in _FAMILIES.get(shape, ()) if declared in (None, name))
    public = _public(entry, algorithms[0]) if algorithms else None
    key = None if public is None else Key(key_id, algorithms, public)
    return key if key is not None and key.algorithms else None


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
        public: AllowedPublicKeys = jwt.PyJWK(entry, algorithm).key
    except (jwt.PyJWTError, UnsupportedAlgorithm):
        return None
    return public


def _good_for(name: str, public: AllowedPublicKeys) -> bool:
    """Whether a key is of the kind and curve that an algorithm is for, and long enough (NIST SP 800-131A)."""
    try:
        algorithm = _SIGNATURES.get_algorithm_by_name(name)
        prepared = algorithm.prepare_key(public)
    except (NotImplementedError, jwt.InvalidKeyError, TypeError):
        return False
    return algorithm.check_key_length(prepared) is None
