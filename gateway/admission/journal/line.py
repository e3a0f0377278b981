"""A settlement <-> a line of the journal: JSON that people can read, and nothing that a call said. No I/O."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

from gateway.admission.digest import digest
from gateway.admission.ledger.account import EVERYBODYS, Account
from gateway.admission.limit import Kind, Limit
from gateway.admission.reservation import Settlement
from gateway.calls.usage import Usage

# How the line of a note begins: of a call that was admitted and has not ended. It has no `ended`.
_NOTE = b'{"admitted":'

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

# Limits and accounts that the lines of an outage share, so that what the store's commands say of them is packed once.
_REMEMBERED = 1024


_OF_ACCOUNT = ("tenant", "key", "model")


class LineUnreadable(Exception):
    """Not a settlement: cut short, or of another hand."""


def is_note(line: bytes) -> bool:
    """Whether `line` says what to charge a call of which nothing else is known."""
    return line.startswith(_NOTE)


def written(settlement: Settlement, *, now_us: int, admitted: bool = False) -> bytes:
    """Return the line of a call that ended now, if its settlement does not say when; or was only `admitted` then."""
    charges = [None] * len(settlement.limits) if settlement.charges is None else settlement.charges
    # What no store has seen yet, and is charged in any case, must be known there for as long as this line may be read.
    unseen = settlement.charges is not None and not settlement.sent_us
    account = settlement.account
    when = _when(settlement.ended_us or now_us)
    line = {
        **({"admitted": when, "call": settlement.call_id} if admitted else {"call": settlement.call_id, "ended": when}),
        "tenant": None if account.tag == EVERYBODYS.tag else account.tenant,
        "key": account.key,
        "model": account.model,
        "usage": None if settlement.usage is None else settlement.usage._asdict(),
        "uncertain": settlement.uncertain or unseen,
        "charged": settlement.charges is not None,
        "limits": [
            {
                "key": one.key,
                "kind": one.kind,
                "limit": one.limit,
                "window_us": one.window_us,
                "add": add,
                "charge": charge,
            }
            for one, add, charge in zip(settlement.limits, settlement.deltas, charges, strict=True)
        ],
    }
    if settlement.refused:
        line["refused"] = True
    if settlement.unended:
        line["unended"] = True
    if settlement.sent_us:
        line["sent"] = _when(settlement.sent_us)
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def read(line: bytes) -> Settlement:
    """Return the settlement that was `written`.

    Raises:
        LineUnreadable: it is none.
    """
    try:
        fields = json.loads(line)
        limits = fields["limits"]
        return Settlement(
            _ascii(fields["call"]),
            EVERYBODYS if fields["tenant"] is None else _account(*[_text(fields[name]) for name in _OF_ACCOUNT]),
            _limits(tuple(map(_state, limits))),
            [int(one["add"]) for one in limits],
            None if fields["usage"] is None else _usage(fields["usage"]),
            bool(fields["uncertain"]),
            [int(one["charge"]) for one in limits] if fields["charged"] else None,
            _us(fields["admitted"] if is_note(line) else fields["ended"]),
            _us(fields["sent"]) if "sent" in fields else 0,
            bool(fields.get("refused", False)),
            bool(fields.get("unended", False)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise LineUnreadable(f"{type(error).__name__}: {error}") from error


def _when(us: int) -> str:
    return (_EPOCH + us * _US).isoformat()


def _us(when: str) -> int:
    return (datetime.fromisoformat(when) - _EPOCH) // _US


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _ascii(value: object) -> str:
    if not (text := _text(value)).isascii():
        raise ValueError(f"{text!a} is not of ours")
    return text


def _state(fields: Mapping[str, Any]) -> tuple[str, Kind, int, int]:
    kind = fields["kind"]
    if kind not in get_args(Kind):
        raise ValueError(f"{kind!r} is no kind of limit")
    return _ascii(fields["key"]), kind, int(fields["limit"]), int(fields["window_us"])


def _usage(fields: Mapping[str, Any]) -> Usage:
    prompt, completion, cached, reasoning = [int(fields[name]) for name in Usage._fields[:4]]
    source: Literal["engine", "estimated"] = "estimated" if fields["source"] == "estimated" else "engine"
    return Usage(prompt, completion, cached, reasoning, source)


@lru_cache(maxsize=_REMEMBERED)
def _account(tenant: str, key: str, model: str) -> Account:
    return Account(tenant, key, model, digest(tenant))


@lru_cache(maxsize=_REMEMBERED)
def _limits(states: tuple[tuple[str, Kind, int, int], ...]) -> tuple[Limit, ...]:
    """Return limits of which a settlement needs no more than this."""
    return tuple([Limit("", "tokens", kind, figure, window_us, key) for key, kind, figure, window_us in states])
