"""How long a source that failed is left alone: longer with each failure in a row, and never all at once. Pure."""

import random

_FIRST_S = 0.5
_DOUBLINGS = 10  # past any limit; without a bound the number would overflow in a week


def pause_s(failures: int, *, longest_s: float, chance: random.Random) -> float:
    """Return the pause after so many failures in a row, at least one."""
    grown_s: float = _FIRST_S * 2 ** min(failures - 1, _DOUBLINGS)
    return min(grown_s, longest_s) * chance.uniform(0.5, 1)
