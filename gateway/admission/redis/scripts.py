"""The shared store's scripts as commands: reservations and settlements in, packed commands and answers out. No I/O."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Protocol

from gateway import config
from gateway.admission.ledger.account import COUNTERS, REFUSED, Account, booked, encoded
from gateway.admission.limit import Limit
from gateway.admission.redis.command import pack
from gateway.admission.redis.events import lua_of, write_no_event
from gateway.admission.reservation import RECORD_S, REFUSED_S, SETTLED_S, Answer, Reservation, Settlement
from gateway.admission.rules import REMEMBERED


class Prepared(Protocol):
    """What a connection begins with."""

    def load(self) -> bytes:
        """Return the command that must succeed before calls are sent."""


@dataclass(frozen=True, slots=True)
class EventsAllowed:
    """That events may be written: a script that met this only at its end would have done half of its work."""

    def load(self) -> bytes:
        """Return a command that shows it."""
        return write_no_event()


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the digest by which the server knows it."""

    text: str
    sha: str

    def load(self) -> bytes:
        """Return the command that makes the server know the script."""
        return pack(["SCRIPT", "LOAD", self.text])


class Scripts:
    """Commands that reserve, settle and renew. `clock` is Lua that defines `now_us`: the server's time by default.

    Every settlement leaves a mark for `marks_s`, 0: only those that ask for one, which lasts. With `ledger_day`, which
    tells the UTC day at a time (us), or now where that is 0, the ledger's key is declared too: a node of a cluster then
    says so where it is just moving away.
    """

    def __init__(
        self,
        *,
        lease_s: float,
        retention_s: float,
        events: config.Events | None = None,
        clock: str | None = None,
        marks_s: int = 0,
        ledger_day: Callable[[int], str] | None = None,
    ) -> None:
        self._lease_us = round(lease_s * 1_000_000)
        self._retention_ms = round(retention_s * 1000)
        self._marks_ms = marks_s * 1000
        # How most settle: with this store's mark, now, and only what is reserved; or, if that is lost, what was used.
        self._usual, self._usual_charging = _bulk([self._marks_ms, 0, 0]), _bulk([self._marks_ms, 0, 1])
        self._ledger_day = ledger_day
        self._more_keys = 0 if ledger_day is None else 1 if events is None else 2
        prelude = (
            f"local MORE_KEYS = {self._more_keys}\n"
            + (_source("clock.lua") if clock is None else clock)
            + _source("windows.lua")
            + _source("ledger.lua")
            + lua_of(events)
        )
        self._reserve, self._settle, self._renew = scripts = tuple(
            _script(prelude + _source(name)) for name in ("reserve.lua", "settle.lua", "renew.lua")
        )
        # On a cluster whether events may be written is tried in a slot of each node's own.
        tries = [] if events is None or self._more_keys else [EventsAllowed()]
        self.all: list[Prepared] = [*scripts, *tries]
        # All but the call's record and figures is packed once for the same account and limits.
        self._around_reserve = lru_cache(maxsize=REMEMBERED)(self._pack_around_reserve)
        self._around_settle = lru_cache(maxsize=REMEMBERED)(self._pack_around_settle)

    def reserve(self, reservation: Reservation) -> bytes:
        """Return the command that takes `reservation`."""
        day = "" if self._ledger_day is None else self._ledger_day(0)
        before, after = self._around_reserve(reservation.account, reservation.limits, day)
        record = reservation.record
        costs = "".join(map(_integer, reservation.costs))
        return f"{before}${len(record)}\r\n{record}\r\n{after}{costs}".encode("ascii")

    def settle(self, settlement: Settlement) -> bytes:
        """Return the command that applies `settlement`."""
        usage = settlement.usage
        figures = booked(usage) if usage is not None else REFUSED if settlement.refused else []
        before, after = self._around_settle(
            settlement.account,
            settlement.limits,
            "" if self._ledger_day is None else self._ledger_day(settlement.ended_us),
            2 * len(figures) + len(settlement.charges or ()),
        )
        record = settlement.record
        deltas = "".join(map(_integer, settlement.deltas))
        books = "".join([_COUNTER[counter] + _integer(figure) for counter, figure in figures])
        how = self._usual if settlement.charges is None else self._usual_charging
        if settlement.uncertain or settlement.ended_us:
            mark_ms = _MARK_MS if settlement.uncertain else self._marks_ms
            missing = 2 if settlement.unended else int(settlement.charges is not None)
            how = _bulk([mark_ms, settlement.ended_us, missing])
        if settlement.charges is not None:
            deltas += "".join(map(_integer, settlement.charges))
        return f"{before}${len(record)}\r\n{record}\r\n{after}{how}{deltas}{books}".encode("ascii")

    def renew(self, reservation: Reservation) -> bytes:
        """Return the command that extends the leases and the record of `reservation`."""
        leases = [limit.key for limit in reservation.limits if limit.kind == "lease"]
        command: list[str | int] = ["EVALSHA", self._renew.sha, len(leases) + 1, reservation.record, *leases]
        return pack([*command, self._lease_us, RECORD_S * 1000])

    def _pack_around_reserve(self, account: Account, limits: tuple[Limit, ...], day: str) -> tuple[str, str]:
        """Return what comes before the call's record, and between that and its costs."""
        words: list[str | int] = self._keys(account, limits, day)
        words += self._lease_us, RECORD_S * 1000, REFUSED_S * 1000
        words += account.line, encoded(account.tenant), self._retention_ms
        for limit in limits:
            words += limit.kind, limit.limit, limit.window_us, int(limit.shadow)
        return self._before(self._reserve, limits, 1 + len(words) + len(limits)), _bulk(words)

    def _pack_around_settle(self, account: Account, limits: tuple[Limit, ...], day: str, more: int) -> tuple[str, str]:
        """Return what comes before the call's record, and between that and the mark; `more` words end the command."""
        words: list[str | int] = self._keys(account, limits, day)
        words += account.line, encoded(account.tenant), self._retention_ms
        for limit in limits:
            words += limit.kind, limit.limit, limit.window_us
        return self._before(self._settle, limits, 4 + len(words) + len(limits) + more), _bulk(words)

    def _keys(self, account: Account, limits: Sequence[Limit], day: str) -> list[str | int]:
        """Return the keys that follow the call's record."""
        more = [f"gw:{{{account.tag}}}:ledger:{day}", f"gw:{{{account.tag}}}:events"][: self._more_keys]
        return [*[limit.key for limit in limits], *more]

    def _before(self, script: Script, limits: Sequence[Limit], words: int) -> str:
        """Return a command of EVALSHA up to its first key; `words` follow the number of keys."""
        return f"*{3 + words}\r\n{_bulk(['EVALSHA', script.sha, 1 + len(limits) + self._more_keys])}"


def write_nothing(tag: str = "") -> list[bytes]:
    """Return what fails wherever a script's commands would, and leaves nothing that lasts. `tag`: in whose slot."""
    key = f"gw:{{{tag}}}:try" if tag else "gw:try"
    tries = _tries()
    return [pack(["SETRANGE", key, 0, ""]), tries.load(), pack(["EVALSHA", tries.sha, 1, key])]


def answer(reply: Sequence[int]) -> Answer:
    """Return what the reserving script's `reply` says."""
    return Answer(reply[0] != 0, list(zip(reply[1::2], reply[2::2], strict=True)))


def _bulk(words: Iterable[str | int]) -> str:
    """Return ASCII words as the protocol writes them."""
    return "".join([f"${len(str(word))}\r\n{word}\r\n" for word in words])


@lru_cache(maxsize=4096)  # the figures of calls are few, and often the same
def _integer(value: int) -> str:
    return _bulk([value])


_COUNTER = {counter: _bulk([counter]) for counter in COUNTERS}

# How long a settlement's mark stays, which a reservation still on its way must find.
_MARK_MS = SETTLED_S * 1000


def _source(name: str) -> str:
    return resources.files("gateway.admission.redis").joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@lru_cache
def _tries() -> Script:
    return _script(_source("try.lua"))
