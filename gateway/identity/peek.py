"""A token's text -> what it claims about its own making, unverified: only good for choosing issuer and key.

Whatever is read here is read again, from the same text and strictly, when the signature is verified.
"""

import base64
import json
import re
from dataclasses import dataclass

from gateway.identity.refused import TokenRefused

# Header, payload, signature. A JWE has five parts: only its issuer can open it, so it is refused like any other text.
_SIGNED = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
# What a stranger can make us parse as JSON before any signature is checked.
MAX_PART_BYTES = 8 * 2**10


@dataclass(frozen=True, slots=True)
class Peeked:
    """The unverified words of a token: its algorithm, its key id if it has one, and its issuer."""

    algorithm: str
    key_id: str | None
    issuer: str


def peek(token: str) -> Peeked:
    """Read header and payload of a compact JWS without verifying anything.

    The header's `jwk`, `jku`, `x5c` and `x5u` are never looked at: a token does not bring its own key. Any `crit` is
    refused: we implement no extension (RFC 7515 section 4.1.11).

    Raises:
        TokenRefused: `malformed`.
    """
    parts = _SIGNED.fullmatch(token)
    if parts is None:
        raise TokenRefused("malformed")
    header, payload = _object(parts[1]), _object(parts[2])
    algorithm, issuer = header.get("alg"), payload.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str) or "crit" in header:
        raise TokenRefused("malformed")
    return Peeked(algorithm=algorithm, key_id=_key_id(header), issuer=issuer)


def _key_id(header: dict[str, object]) -> str | None:
    if "kid" not in header:
        return None
    key_id = header["kid"]
    if not isinstance(key_id, str):
        raise TokenRefused("malformed")
    return key_id


def _object(part: str) -> dict[str, object]:
    if len(part) * 3 // 4 > MAX_PART_BYTES:
        raise TokenRefused("malformed")
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=="))
    except (ValueError, RecursionError) as error:  # base64, UTF-8, JSON, and integers of over 4300 digits
        raise TokenRefused("malformed") from error
    if not isinstance(value, dict):
        raise TokenRefused("malformed")
    return value
