"""A refused reservation -> the error that the client gets: which limit, its figure, and when to come back."""

from datetime import UTC, datetime

from gateway import errors
from gateway.admission.headers import go_duration, go_window, ratelimit_headers
from gateway.admission.limit import Level, Limit
from gateway.admission.reservation import Answer, Reservation

_NEVER = {"x-should-retry": "false"}


def refusal(reservation: Reservation, answer: Answer, *, now_s: float) -> errors.TooMany:
    """Return the refusal by the limit that keeps the client out longest: what never fits, then a quota, then a rate."""
    refusing = [
        (_rank(limit, cost), limit.retry_after_us(*level, cost), i)
        for i, (limit, cost, level) in enumerate(zip(reservation.limits, reservation.costs, answer.levels, strict=True))
        if not limit.shadow and limit.refuses(level[0], cost)
    ]
    rank, retry_after_us, i = max(refusing)
    limit, cost, level = reservation.limits[i], reservation.costs[i], answer.levels[i]
    headers = _headers(reservation, answer, shown=i)
    if rank == _FITS_NEVER:
        return errors.RequestExceedsLimit(_exceeds(limit, cost), headers=headers | _NEVER)
    if rank == _QUOTA:
        back = datetime.fromtimestamp(now_s + retry_after_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        message = f"Quota {limit.rule} is spent: {_figures(limit, cost, level)}. It starts anew at {back}."
        return errors.QuotaExceeded(message, headers=headers | _NEVER)
    return errors.RateLimited(
        _reached(limit, cost, level, retry_after_us),
        measure=limit.measure,
        headers=headers | errors.retry_headers(retry_after_us / 1_000_000),
    )


_RATE, _QUOTA, _FITS_NEVER = range(3)


def _rank(limit: Limit, cost: int) -> int:
    if limit.refuses(0, cost):
        return _FITS_NEVER
    return _QUOTA if limit.kind in {"day", "month"} else _RATE


def _headers(reservation: Reservation, answer: Answer, *, shown: int) -> dict[str, str]:
    """Return the headers as before this call, which is charged nothing; of its measure, the refusing limit's own."""
    nothing = [0] * len(reservation.limits)
    tightest = ratelimit_headers(reservation.limits, nothing, answer.levels)
    return tightest | ratelimit_headers((reservation.limits[shown],), [0], [answer.levels[shown]])


def _exceeds(limit: Limit, cost: int) -> str:
    if limit.limit == 0:
        return f"Limit {limit.rule} allows none of this: {_allowance(limit)}."
    return f"This call needs {cost}, more than limit {limit.rule} allows at all: {_allowance(limit)}. {_advice(limit)}"


def _advice(limit: Limit) -> str:
    """Return what makes a call count less. Only of tokens a call may need more than 1."""
    if limit.count == "input" or (limit.price is not None and not limit.price.dearest.completion):
        return "Shorten the input."
    if limit.count == "output" or (limit.price is not None and not limit.price.dearest.prompt):
        return "Lower max_tokens."
    return "Lower max_tokens or shorten the input."


def _reached(limit: Limit, cost: int, level: Level, retry_after_us: int) -> str:
    when = "when one of them has ended" if limit.kind == "lease" else f"in {go_duration(retry_after_us)}"
    return f"Limit {limit.rule} is reached: {_figures(limit, cost, level)}. Try again {when}."


def _figures(limit: Limit, cost: int, level: Level) -> str:
    if limit.measure == "tokens":
        return f"{_allowance(limit)}, {level[0]} used or reserved, and this call reserves {cost}"
    return f"{_allowance(limit)}, {level[0]} {'under way' if limit.kind == 'lease' else 'used'}"


def _allowance(limit: Limit) -> str:
    if limit.kind == "lease":
        return f"{limit.limit} calls at once"
    kind = "weighted " if limit.price is not None else ""
    kind += "" if limit.count == "total" else f"{limit.count} "
    window = f"in {go_window(limit.window_us)}" if limit.kind == "bucket" else f"per {limit.kind} (UTC)"
    return f"{limit.limit} {kind}{limit.measure} {window}"
