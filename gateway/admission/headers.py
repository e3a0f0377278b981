"""The x-ratelimit headers: limits and their levels in, text out."""

from collections.abc import Sequence

from gateway.admission.limit import Level, Limit

_NAMES = {
    measure: tuple(f"x-ratelimit-{figure}-{measure}" for figure in ("limit", "remaining", "reset"))
    for measure in ("requests", "tokens")
}


def ratelimit_headers(limits: Sequence[Limit], costs: Sequence[int], levels: Sequence[Level]) -> dict[str, str]:
    """Return, for each measure, the figures of the limit with the least remaining once `costs` are charged.

    Shadow limits refuse nobody and are not shown; calls at once have no header.
    """
    tightest: dict[str, tuple[int, Limit, int, int]] = {}
    for limit, cost, (used, clock_us) in zip(limits, costs, levels, strict=True):
        if limit.shadow or limit.kind == "lease":
            continue
        remaining = limit.limit - used - cost
        best = tightest.get(limit.measure)
        if best is None or remaining < best[0]:
            tightest[limit.measure] = remaining, limit, used + cost, clock_us
    headers = {}
    for measure, (remaining, limit, used, clock_us) in tightest.items():
        of_limit, of_remaining, of_reset = _NAMES[measure]
        headers[of_limit] = str(limit.limit)
        headers[of_remaining] = str(max(remaining, 0))
        headers[of_reset] = go_duration(limit.reset_after_us(used, clock_us))
    return headers


def go_duration(microseconds: int) -> str:
    """Return a duration as Go writes it, rounded up to ms, from 1 s on to seconds: `120ms`, `6m0s`, `24h0m0s`."""
    milliseconds = -(-microseconds // 1000)
    if 0 < milliseconds < 1000:  # noqa: PLR2004 a second
        return f"{milliseconds}ms"
    seconds = -(-milliseconds // 1000)
    if seconds < 60:  # noqa: PLR2004 a minute
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
