"""A token's text -> what it says, unverified: only good for choosing who is to verify it.

A signed token is read once, here, and strictly: there is one way to read it, and `verify` checks its signature over
the very text that was read. Other tokens are judged by their issuer. At most 8 KiB of a part are read.
"""

import binascii
import re
import string
from typing import Any, NamedTuple

import jiter

from gateway import config
from gateway.identity.refused import TokenRefused

_ALPHABET = (string.ascii_letters + string.digits + "-_").encode()
_TO_BASE64 = bytes.maketrans(b"-_", b"+/")
# A JWS: header, payload, signature.
_SIGNED_PARTS = 3
_SIGNED = _ALPHABET + b"."
# Header, wrapped key (empty where it is agreed on), nonce, ciphertext, tag (RFC 7516 section 7.1).
_ENCRYPTED = re.compile(rb"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# By the length of a part modulo 4, the characters that it may end with.
_LAST_CHARACTERS = (_ALPHABET, b"", b"AQgw", b"AEIMQUYcgkosw048")
_OPAQUE = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750 section 2.1
# What a stranger can make us parse as JSON before any signature is checked.
MAX_PART_BYTES = 8 * 2**10


class Peeked(NamedTuple):
    """The unverified words of a signed token: its algorithm, its key id if it has one, its issuer, all its claims.

    `signature` is what stands there for the signature of `signing_input`.
    """

    algorithm: str
    key_id: str | None
    issuer: str
    claims: dict[str, Any]
    signing_input: bytes
    signature: bytes


def peek(token: str) -> Peeked | config.Form:
    """Read a compact JWS without verifying anything; of any other token return its form.

    What has a JOSE header is a JWS or a JWE, and must be a whole one; what has none is opaque, however many dots.
    The header's `jwk`, `jku`, `x5c` and `x5u` are never looked at: a token does not bring its own key.

    Raises:
        TokenRefused: `malformed`.
    """
    text = token.encode("ascii", "replace")  # what is not ASCII is a `?`, which stands in no token
    parts = text.split(b".")
    header = _object(_bytes(parts[0]))
    if header is None:
        if _OPAQUE.fullmatch(text) is None:
            raise TokenRefused("malformed")
        return "opaque"
    if "enc" in header:
        if _ENCRYPTED.fullmatch(text) is None:
            raise TokenRefused("malformed")
        return "encrypted"
    return _signed(text, parts, header)


def _signed(text: bytes, parts: list[bytes], header: dict[str, Any]) -> Peeked:
    """Read the rest of a JWS.

    Any `crit` is refused: we implement no extension (RFC 7515 section 4.1.11). So is the extension that would change
    what is signed, with `crit` or without (RFC 7797). A token has one spelling: each part is the only encoding of its
    bytes (RFC 4648 section 3.5).
    """
    if "crit" in header or header.get("b64", True) is not True:
        raise TokenRefused("malformed")
    if len(parts) != _SIGNED_PARTS or text.translate(None, _SIGNED) or not all(map(_only_encoding, parts)):
        raise TokenRefused("malformed")
    claims, signature = _object(_bytes(parts[1])), _bytes(parts[2])
    if claims is None or signature is None:
        raise TokenRefused("malformed")
    algorithm, issuer = header.get("alg"), claims.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str):
        raise TokenRefused("malformed")
    return Peeked(
        algorithm=algorithm,
        key_id=_key_id(header),
        issuer=issuer,
        claims=claims,
        signing_input=text[: -len(parts[2]) - 1],
        signature=signature,
    )


def _key_id(header: dict[str, Any]) -> str | None:
    if "kid" not in header:
        return None
    key_id = header["kid"]
    if not isinstance(key_id, str):
        raise TokenRefused("malformed")
    return key_id


def _only_encoding(part: bytes) -> bool:
    """Whether no bits of a part's last character are left over, or all of them are zero. An empty part encodes none."""
    return part != b"" and part[-1] in _LAST_CHARACTERS[len(part) % 4]


def _bytes(part: bytes) -> bytes | None:
    """Return what a part encodes, whatever its last bits; None where it is not base64url."""
    if len(part) * 3 // 4 > MAX_PART_BYTES:
        raise TokenRefused("malformed")
    try:
        return binascii.a2b_base64(part.translate(_TO_BASE64) + b"==")
    except ValueError:
        return None


def _object(text: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that a part holds; None where it holds none that every reader understands alike."""
    if text is None:
        return None
    try:
        # Names must be unique (RFC 7515 section 4, RFC 7519 section 4). No value of a token is kept in a cache.
        value = jiter.from_json(text, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="keys")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
