"""The x-ratelimit headers: limits and their levels in, text out."""

from collections.abc import Sequence
from functools import lru_cache

from gateway.admission.limit import Level, Limit
from gateway.admission.rules import REMEMBERED

_MEASURES = ("requests", "tokens")

# Where a limit stands among those of a reservation, its figure, and the text up to what remains of it.
_Shown = tuple[int, Limit, str]


def ratelimit_fields(limits: tuple[Limit, ...], costs: Sequence[int], levels: Sequence[Level]) -> str:
    """Return, for each measure, the figures of the limit with the least remaining once `costs` are charged.

    Lines as in a head, each with its end. Shadow limits refuse nobody and are not shown; calls at once have no header.
    """
    fields = ""
    for first, others, of_reset in _shown(limits):
        at, limit, opening = first
        remaining = limit.limit - levels[at][0] - costs[at]
        for other in others:
            i, rival, _ = other
            left = rival.limit - levels[i][0] - costs[i]
            if left < remaining:
                (at, limit, opening), remaining = other, left
        reset = go_duration(limit.reset_after_us(limit.limit - remaining, levels[at][1]))
        fields += f"{opening}{max(remaining, 0)}{of_reset}{reset}\r\n"
    return fields


def ratelimit_headers(limits: tuple[Limit, ...], costs: Sequence[int], levels: Sequence[Level]) -> dict[str, str]:
    """Return `ratelimit_fields` by name."""
    return dict([line.split(": ") for line in ratelimit_fields(limits, costs, levels).splitlines()])


@lru_cache(maxsize=REMEMBERED)
def _shown(limits: tuple[Limit, ...]) -> list[tuple[_Shown, tuple[_Shown, ...], str]]:
    """Return for each measure the first of `limits` that may be shown, the others, and what stands before the reset."""
    found = []
    for measure in _MEASURES:
        candidates = [
            (i, limit, f"x-ratelimit-limit-{measure}: {limit.limit}\r\nx-ratelimit-remaining-{measure}: ")
            for i, limit in enumerate(limits)
            if limit.measure == measure and not limit.shadow
        ]
        if candidates:
            found.append((candidates[0], tuple(candidates[1:]), f"\r\nx-ratelimit-reset-{measure}: "))
    return found


def go_duration(microseconds: int) -> str:
    """Return a duration as Go writes it, rounded up to ms, from 1 s on to seconds: `120ms`, `6m0s`, `24h0m0s`."""
    if 0 < microseconds <= 999_000:  # noqa: PLR2004 what is more is a second
        return f"{-(-microseconds // 1000)}ms"
    return _of_seconds(-(-microseconds // 1_000_000))


def go_window(microseconds: int) -> str:
    """Return the length of a window as Go writes a duration, exactly: `100ms`, `1.7s`, `1m0s`."""
    seconds, rest = divmod(microseconds, 1_000_000)
    if not seconds:
        return f"{microseconds / 1000:g}ms"
    return _of_seconds(seconds) if not rest else f"{_of_seconds(seconds)[:-1]}{f'{rest / 1_000_000:.6f}'.strip('0')}s"


@lru_cache(maxsize=1024)  # quotas of all calls of a second end equally far away
def _of_seconds(seconds: int) -> str:
    if seconds < 60:  # noqa: PLR2004 a minute
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
