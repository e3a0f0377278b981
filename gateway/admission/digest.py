"""Names -> parts of keys: whatever a name holds, its part is as long as any other and plain. No I/O."""

import hashlib


def digest(text: str) -> str:
    """Return 128 bits of SHA-256 as 32 digits. `text` may hold whatever JSON can carry, lone surrogates included."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
