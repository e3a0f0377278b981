"""What a ledger holds: one figure of one line on one day."""

from datetime import date
from typing import NamedTuple

from gateway.admission.ledger.account import Counter

# Whoever reads lets others have the event loop after so many: a millisecond or two.
PAUSE_AFTER = 500


class Posting(NamedTuple):
    """So much of one counter, of one tenant's key and model, on one UTC day."""

    day: date
    tenant: str
    key: str
    model: str
    counter: Counter
    figure: int
