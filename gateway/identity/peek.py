"""A token's text -> what it claims about its own making, unverified: only good for choosing who is to verify it.

Whatever is read here is read again, from the same text and strictly, when the signature is verified, or is judged by
the issuer itself. At most 8 KiB of a part are read.
"""

import base64
import json
import re
from dataclasses import dataclass

from gateway import config
from gateway.identity.refused import TokenRefused

# Header, payload, signature.
_SIGNED = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
# Header, wrapped key (empty where it is agreed on), nonce, ciphertext, tag (RFC 7516 section 7.1).
_ENCRYPTED = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_OPAQUE = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750 section 2.1
# What a stranger can make us parse as JSON before any signature is checked.
MAX_PART_BYTES = 8 * 2**10


@dataclass(frozen=True, slots=True)
class Peeked:
    """The unverified words of a signed token: its algorithm, its key id if it has one, and its issuer."""

    algorithm: str
    key_id: str | None
    issuer: str


def peek(token: str) -> Peeked | config.Form:
    """Read header and payload of a compact JWS without verifying anything; of any other token return its form.

    What has a JOSE header is a JWS or a JWE, and must be a whole one; what has none is opaque, however many dots.
    The header's `jwk`, `jku`, `x5c` and `x5u` are never looked at: a token does not bring its own key. Any `crit` of a
    JWS is refused: we implement no extension (RFC 7515 section 4.1.11).

    Raises:
        TokenRefused: `malformed`.
    """
    header = _object(token.partition(".")[0])
    if header is None:
        if _OPAQUE.fullmatch(token) is None:
            raise TokenRefused("malformed")
        return "opaque"
    if "enc" in header:
        if _ENCRYPTED.fullmatch(token) is None:
            raise TokenRefused("malformed")
        return "encrypted"
    parts = _SIGNED.fullmatch(token)
    payload = _object(parts[2]) if parts else None
    if payload is None or "crit" in header:
        raise TokenRefused("malformed")
    algorithm, issuer = header.get("alg"), payload.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str):
        raise TokenRefused("malformed")
    return Peeked(algorithm=algorithm, key_id=_key_id(header), issuer=issuer)


def _key_id(header: dict[str, object]) -> str | None:
    if "kid" not in header:
        return None
    key_id = header["kid"]
    if not isinstance(key_id, str):
        raise TokenRefused("malformed")
    return key_id


def _object(part: str) -> dict[str, object] | None:
    """Return the JSON object that a part encodes; None where it encodes none."""
    if len(part) * 3 // 4 > MAX_PART_BYTES:
        raise TokenRefused("malformed")
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=="))
    except (ValueError, RecursionError):  # base64, UTF-8, JSON, and integers of over 4300 digits
        return None
    return value if isinstance(value, dict) else None
