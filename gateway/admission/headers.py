"""The x-ratelimit headers: limits and their levels in, text out."""

from collections.abc import Sequence
from functools import lru_cache

from gateway.admission.limit import Level, Limit
from gateway.admission.rules import REMEMBERED

_MEASURES = ("requests", "tokens")
_FIGURES = ("limit", "remaining", "reset")


def ratelimit_headers(limits: tuple[Limit, ...], costs: Sequence[int], levels: Sequence[Level]) -> dict[str, str]:
    """Return, for each measure, the figures of the limit with the least remaining once `costs` are charged.

    Shadow limits refuse nobody and are not shown; calls at once have no header.
    """
    headers = {}
    for at, others, (of_limit, of_remaining, of_reset) in _shown(limits):
        limit, (used, clock_us) = limits[at], levels[at]
        used += costs[at]
        remaining = limit.limit - used
        for other in others:
            if limits[other].limit - levels[other][0] - costs[other] < remaining:
                limit, (used, clock_us) = limits[other], levels[other]
                used += costs[other]
                remaining = limit.limit - used
        headers[of_limit] = str(limit.limit)
        headers[of_remaining] = str(remaining) if remaining > 0 else "0"
        headers[of_reset] = go_duration(limit.reset_after_us(used, clock_us))
    return headers


@lru_cache(maxsize=REMEMBERED)
def _shown(limits: tuple[Limit, ...]) -> list[tuple[int, tuple[int, ...], tuple[str, str, str]]]:
    """Return for each measure the first of `limits` that may be shown, the others, and the names of its headers."""
    found = []
    for measure in _MEASURES:
        shown = [i for i, limit in enumerate(limits) if limit.measure == measure and not limit.shadow]
        of_limit, of_remaining, of_reset = (f"x-ratelimit-{figure}-{measure}" for figure in _FIGURES)
        if shown:
            found.append((shown[0], tuple(shown[1:]), (of_limit, of_remaining, of_reset)))
    return found


def go_duration(microseconds: int) -> str:
    """Return a duration as Go writes it, rounded up to ms, from 1 s on to seconds: `120ms`, `6m0s`, `24h0m0s`."""
    milliseconds = -(-microseconds // 1000)
    if 0 < milliseconds < 1000:  # noqa: PLR2004 a second
        return f"{milliseconds}ms"
    return _of_seconds(-(-milliseconds // 1000))


@lru_cache(maxsize=1024)  # quotas of all calls of a second end equally far away
def _of_seconds(seconds: int) -> str:
    if seconds < 60:  # noqa: PLR2004 a minute
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
