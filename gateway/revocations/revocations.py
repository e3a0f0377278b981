"""The revocations of one running gateway: what is kept in the store in, who is denied out.

Each change is a line in the log. What cannot hold is left out, said and counted, and stops nothing. What has an end is
taken out at that time by this process's own clock.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from gateway.admission.settings.members import iso, shown
from gateway.clock import Clock
from gateway.identity.denied import Denied
from gateway.revocations.revocation import Entry, Revocation, judge

log = logging.getLogger(__name__)

# Their name among the settings that a store keeps.
REVOCATIONS = "revocations"

# The next end is looked for again after so long at most, so that a clock that is set has its effect.
_LOOK_AGAIN_S = 60.0


class Revocations:
    """Owns who is denied, and the timer of the next end. `deny` is told whenever somebody else is."""

    def __init__(self, deny: Callable[[Denied], None], clock: Clock) -> None:
        self._deny = deny
        self._clock = clock
        self._entries: dict[str, Entry] | None = None  # until the store was read
        self._holding: dict[str, Revocation] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def entries(self) -> Collection[Entry]:
        """All that the store keeps, as far as this process knows."""
        return [] if self._entries is None else list(self._entries.values())

    @property
    def holding(self) -> Collection[Revocation]:
        """What is in force."""
        return self._holding.values()

    @property
    def left_out(self) -> int:
        """How many cannot be read."""
        return sum(entry.fault is not None for entry in self.entries)

    def take(self, kept: Mapping[str, bytes]) -> None:
        """Let what is `kept` hold from now on. Only what changed since the last time is read."""
        known, first = self._entries or {}, self._entries is None
        entries: dict[str, Entry] = {}
        for name, value in kept.items():
            entry = known.get(name)
            if entry is None or entry.value != value:
                entry = judge(name, value)
                if entry.fault is not None:
                    log.warning("revocation %s does not hold: %s", shown(name), entry.fault)
            entries[name] = entry
        self._entries = entries
        self._renew(tell=not first)
        if first and entries:
            log.info("revocations: %d in force of %d that the store keeps", len(self._holding), len(entries))

    def end(self) -> None:
        """Take out what has ended."""
        self._renew(tell=True)

    def close(self) -> None:
        """Stop looking for ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self, *, tell: bool) -> None:
        """Find what holds now, tell what that changes, and have identity follow."""
        now_s, before = self._clock.now(), self._holding
        self._holding = {
            one.name: one.revocation for one in self.entries if one.revocation is not None and one.holds(now_s)
        }
        changed = [name for name in before | self._holding if before.get(name) is not self._holding.get(name)]
        if tell:
            for name in changed:
                log.info("revocation %s: %s -> %s", name, _said(before.get(name)), _said(self._holding.get(name)))
        if before.keys() != self._holding.keys():
            self._deny(_denied(self._holding.values()))
        self._look_for_the_next_end(now_s)

    def _look_for_the_next_end(self, now_s: float) -> None:
        self.close()
        ends = [one.until for one in self._holding.values() if one.until is not None]
        if ends:
            wait_s = min(max(min(ends) - now_s, 0.0), _LOOK_AGAIN_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)


def _denied(holding: Collection[Revocation]) -> Denied:
    return Denied(
        tenants=frozenset(one.tenant for one in holding if one.key is None and one.jti is None),
        keys=frozenset((one.tenant, one.key) for one in holding if one.key is not None),
        tokens=frozenset((one.tenant, one.jti) for one in holding if one.jti is not None),
    )


def _said(revocation: Revocation | None) -> str:
    if revocation is None:
        return "none"
    return "revoked" if revocation.until is None else f"revoked until {iso(revocation.until)}"
