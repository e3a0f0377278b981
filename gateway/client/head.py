"""What the head of a request may be: how large, and what HTTP forbids though the parser lets it pass."""

from collections.abc import Mapping

# Tokens of many groups and cookies have kilobytes; more is an attack.
MAX_TARGET_BYTES = 8 * 1024
MAX_FIELDS = 128
MAX_HEAD_BYTES = 64 * 1024
# Fields that no request has twice: of two, two readers could each take another (RFC 9110, 5.3; RFC 9112, 3.2 and 6.3).
ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"content-type", b"content-encoding", b"expect"})
_FRAMING = (b"content-length", b"transfer-encoding")


def is_request(version: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a head of these fields, their names in lower case, begins one request only (RFC 9112, 3.2 and 6.1)."""
    coding = fields.get(b"transfer-encoding")
    return (
        version in {"1.1", "1.0"}
        and (version == "1.0" or b"host" in fields)
        and (coding is None or (coding.lower() == b"chunked" and version == "1.1"))
    )


def stand_in(fields: Mapping[bytes, bytes]) -> bytes:
    """Return a head whose body is framed as that of a head with these fields is, and which asks for nothing else."""
    framing = [b"%b: %b\r\n" % (name, fields[name]) for name in _FRAMING if name in fields]
    return b"POST / HTTP/1.1\r\nHost: a\r\n%b\r\n" % b"".join(framing)
