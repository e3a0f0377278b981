"""`Retry-After` as an engine, or a proxy before it, sends it (RFC 9110, 10.2.3): seconds, or a date. Pure."""

import math
from datetime import UTC
from email.utils import parsedate_to_datetime


def wait_of(field: bytes, *, now: float) -> float | None:
    """Return the seconds from `now` (Unix time) that the field asks for; None where it asks for none."""
    text = field.decode("latin-1").strip()
    try:
        wait_s = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
            wait_s = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return wait_s if math.isfinite(wait_s) and wait_s > 0 else None
