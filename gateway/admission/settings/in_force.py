"""One kind of settings of one running gateway: what is kept in the store in, what holds out.

Each change is a line in the log. What cannot hold is left out, said and counted, and stops nothing. What has an end is
taken out at that time by this process's own clock.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Generic

from gateway.admission.settings.entry import Entry, Kind
from gateway.admission.settings.members import shown
from gateway.clock import Clock

log = logging.getLogger(__name__)

# The next end is looked for again after so long at most, so that a clock that is set has its effect.
_LOOK_AGAIN_S = 60.0


class InForce(ABC, Generic[Kind]):
    """Owns what holds, and the timer of the next end. `what` is what the log calls one of them."""

    def __init__(self, clock: Clock, *, what: str) -> None:
        self._clock = clock
        self._what = what
        self._entries: dict[str, Entry[Kind]] | None = None  # until the store was read
        self._holding: dict[str, Kind] = {}
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def judge(self, name: str, value: bytes) -> Entry[Kind]:
        """Return the entry that is kept so."""

    @abstractmethod
    def said(self, setting: Kind) -> str:
        """Return what the log says of it."""

    @abstractmethod
    def follow(self, changed: Collection[Kind]) -> None:
        """Have the gateway go by what holds now; `changed` are those that do not any more, and those that do now."""

    @property
    def entries(self) -> Collection[Entry[Kind]]:
        """All that the store keeps, as far as this process knows."""
        return [] if self._entries is None else list(self._entries.values())

    @property
    def holding(self) -> Collection[Kind]:
        """What is in force."""
        return self._holding.values()

    @property
    def left_out(self) -> int:
        """How many do not hold although their time is not over."""
        now_s = self._clock.now()
        return sum(entry.fault is not None and not entry.ended(now_s) for entry in self.entries)

    def take(self, kept: Mapping[str, bytes]) -> None:
        """Let what is `kept` hold from now on. Only what changed since the last time is read."""
        known, first = self._entries or {}, self._entries is None
        entries: dict[str, Entry[Kind]] = {}
        for name, value in kept.items():
            entry = known.get(name)
            if entry is None or entry.value != value:
                entry = self._judged(name, value)
            entries[name] = entry
        self._entries = entries
        self._renew(tell=not first)
        if first and entries:
            log.info("%ss: %d in force of %d that the store keeps", self._what, len(self._holding), len(entries))

    def judge_again(self) -> None:
        """Judge anew all that is kept: what it is held against has changed."""
        if self._entries is not None:
            self._entries = {name: self._judged_again(entry) for name, entry in self._entries.items()}
        self._renew(tell=True)

    def end(self) -> None:
        """Take out what has ended."""
        self._renew(tell=True)

    def close(self) -> None:
        """Stop looking for ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _judged(self, name: str, value: bytes) -> Entry[Kind]:
        entry = self.judge(name, value)
        if entry.fault is not None:
            log.warning("%s %s does not hold: %s", self._what, shown(name), entry.fault)
        return entry

    def _judged_again(self, entry: Entry[Kind]) -> Entry[Kind]:
        again = self.judge(entry.name, entry.value)
        if again == entry:
            return entry  # itself, by which it is known that nothing has changed
        return self._judged(entry.name, entry.value)

    def _renew(self, *, tell: bool) -> None:
        """Find what holds now, tell what that changes, and have the gateway follow."""
        now_s, before = self._clock.now(), self._holding
        self._holding = now = {
            one.name: one.setting for one in self.entries if one.setting is not None and one.holds(now_s)
        }
        names = [name for name in before | now if before.get(name) is not now.get(name)]
        if tell:
            for name in names:
                log.info("%s %s: %s -> %s", self._what, name, self._told(before.get(name)), self._told(now.get(name)))
        if names:
            self.follow([one for name in names for one in (before.get(name), now.get(name)) if one is not None])
        self._look_for_the_next_end(now_s)

    def _told(self, setting: Kind | None) -> str:
        return "none" if setting is None else self.said(setting)

    def _look_for_the_next_end(self, now_s: float) -> None:
        self.close()
        ends = [setting.until for setting in self._holding.values() if setting.until is not None]
        if ends:
            wait_s = min(max(min(ends) - now_s, 0.0), _LOOK_AGAIN_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)
