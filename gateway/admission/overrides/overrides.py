"""The overrides of one running gateway: what is kept in the store in, what the rulebook holds for each tenant out.

Each change is a line in the log. What cannot hold is left out, said and counted, and stops nothing. What has an end is
taken out at that time by this process's own clock.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from gateway import config
from gateway.admission.overrides.entry import Entry, judge
from gateway.admission.overrides.merge import merged
from gateway.admission.overrides.override import Override
from gateway.admission.overrides.rows import said
from gateway.admission.rules import Rulebook
from gateway.admission.settings.members import shown
from gateway.clock import Clock

log = logging.getLogger(__name__)

# Their name among the settings that a store keeps.
OVERRIDES = "overrides"

# The next end is looked for again after so long at most, so that a clock that is set has its effect.
_LOOK_AGAIN_S = 60.0


class Overrides:
    """Owns what overrides make of `limits.tenants`, and the timer of the next end."""

    def __init__(self, limits: config.Limits, rulebook: Rulebook, clock: Clock) -> None:
        self._limits = limits
        self._rulebook = rulebook
        self._clock = clock
        self._entries: dict[str, Entry] | None = None  # until the store was read
        self._holding: dict[str, Override] = {}
        self._tenants = dict(limits.tenants)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def entries(self) -> Collection[Entry]:
        """All that the store keeps, as far as this process knows."""
        return [] if self._entries is None else list(self._entries.values())

    @property
    def holding(self) -> Collection[Override]:
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
        entries: dict[str, Entry] = {}
        for name, value in kept.items():
            entry = known.get(name)
            if entry is None or entry.value != value:
                entry = self._judged(name, value)
            entries[name] = entry
        self._entries = entries
        self._renew(tell=not first)
        if first and entries:
            log.info("overrides: %d in force of %d that the store keeps", len(self._holding), len(entries))

    def configure(self, limits: config.Limits) -> None:
        """Go by these limits from now on: what is kept is judged anew, and laid over their entries."""
        self._limits = limits
        self._tenants = dict(limits.tenants)
        if self._entries is not None:
            self._entries = {name: self._judged_again(entry) for name, entry in self._entries.items()}
        self._renew(tell=True)
        self._merge({override.tenant for override in self._holding.values()})

    def end(self) -> None:
        """Take out what has ended."""
        self._renew(tell=True)

    def close(self) -> None:
        """Stop looking for ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _judged(self, name: str, value: bytes) -> Entry:
        entry = judge(name, value, self._limits)
        if entry.fault is not None:
            log.warning("override %s does not hold: %s", shown(name), entry.fault)
        return entry

    def _judged_again(self, entry: Entry) -> Entry:
        again = judge(entry.name, entry.value, self._limits)
        if again == entry:
            return entry  # itself, by which it is known that nothing has changed
        return self._judged(entry.name, entry.value)

    def _renew(self, *, tell: bool) -> None:
        """Find what holds now, tell what that changes, and have the rulebook follow."""
        now_s = self._clock.now()
        before = self._holding
        self._holding = {
            one.name: one.override for one in self.entries if one.override is not None and one.holds(now_s)
        }
        changed = [name for name in before | self._holding if before.get(name) is not self._holding.get(name)]
        if tell:
            for name in changed:
                log.info("override %s: %s -> %s", name, said(before.get(name)), said(self._holding.get(name)))
        if changed:
            self._merge({one.tenant for name in changed for one in (before.get(name), self._holding.get(name)) if one})
        self._look_for_the_next_end(now_s)

    def _merge(self, tenants: Collection[str]) -> None:
        """Lay what holds over the config's entries of `tenants`."""
        its: dict[str, list[Override]] = {tenant: [] for tenant in tenants}
        for override in self._holding.values():
            if override.tenant in its:
                its[override.tenant].append(override)
        for tenant, overrides in its.items():
            entry = self._limits.tenants.get(tenant)
            if overrides:
                self._tenants[tenant] = merged(entry or config.TenantEntry(), overrides)
            elif entry is None:
                self._tenants.pop(tenant, None)
            else:
                self._tenants[tenant] = entry
        self._rulebook.replace(self._tenants)

    def _look_for_the_next_end(self, now_s: float) -> None:
        self.close()
        ends = [override.until for override in self._holding.values() if override.until is not None]
        if ends:
            wait_s = min(max(min(ends) - now_s, 0.0), _LOOK_AGAIN_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)
