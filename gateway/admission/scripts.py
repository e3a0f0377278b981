"""The shared store's scripts as commands: reservations and settlements in, packed commands and answers out. No I/O."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from hiredis import pack_command

from gateway.admission.reservation import RECORD_S, SETTLED_S, Answer, Reservation, Settlement

_ADMITTED_BEFORE = 2


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the digest by which the server knows it."""

    text: str
    sha: str

    def load(self) -> bytes:
        """Return the command that makes the server know the script."""
        return _pack(["SCRIPT", "LOAD", self.text])


class Scripts:
    """Commands that reserve, settle and renew. `clock` is Lua that defines `now_us`: the server's time by default."""

    def __init__(self, *, lease_s: float, clock: str | None = None) -> None:
        self._lease_us = round(lease_s * 1_000_000)
        prelude = (_source("clock.lua") if clock is None else clock) + _source("windows.lua")
        self._reserve, self._settle, self._renew = self.all = tuple(
            _script(prelude + _source(name)) for name in ("reserve.lua", "settle.lua", "renew.lua")
        )

    def reserve(self, reservation: Reservation) -> bytes:
        """Return the command that takes `reservation`."""
        limits = reservation.limits
        command: list[str | int] = ["EVALSHA", self._reserve.sha, len(limits) + 1, reservation.record]
        command += [limit.key for limit in limits]
        command += (reservation.call_id, self._lease_us, RECORD_S * 1000)
        for limit, cost in zip(limits, reservation.costs, strict=True):
            command += (limit.kind, limit.limit, limit.window_us, cost, 1 if limit.shadow else 0)
        return _pack(command)

    def settle(self, settlement: Settlement) -> bytes:
        """Return the command that applies `settlement`."""
        limits = settlement.limits
        command: list[str | int] = ["EVALSHA", self._settle.sha, len(limits) + 1, settlement.record]
        command += [limit.key for limit in limits]
        command += (settlement.call_id, SETTLED_S * 1000 if settlement.uncertain else 0)
        for limit, delta in zip(limits, settlement.deltas, strict=True):
            command += (limit.kind, limit.limit, limit.window_us, delta)
        return _pack(command)

    def renew(self, reservation: Reservation) -> bytes:
        """Return the command that extends the leases and the record of `reservation`."""
        leases = [limit.key for limit in reservation.limits if limit.kind == "lease"]
        command: list[str | int] = ["EVALSHA", self._renew.sha, len(leases) + 1, reservation.record, *leases]
        return _pack([*command, reservation.call_id, self._lease_us, RECORD_S * 1000])


def write_nothing() -> bytes:
    """Return a command that fails wherever a script's writes would, and changes nothing."""
    return _pack(["SETRANGE", "gw:try", 0, ""])


def answer(reservation: Reservation, reply: Sequence[int]) -> Answer:
    """Return what the reserving script's `reply` says."""
    levels = list(zip(reply[1::2], reply[2::2], strict=True))
    if reply[0] == _ADMITTED_BEFORE:
        levels = [(max(used - cost, 0), clock) for (used, clock), cost in zip(levels, reservation.costs, strict=True)]
    return Answer(reply[0] != 0, levels)


def _pack(words: Sequence[str | int]) -> bytes:
    packed: bytes = pack_command(tuple(words))  # type: ignore[arg-type] # its stub has a tuple of one
    return packed


def _source(name: str) -> str:
    return resources.files("gateway.admission").joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
