"""The overrides of one running gateway: what is kept in the store in, what the rulebook holds for each tenant out."""

from collections.abc import Collection

from gateway import config
from gateway.admission.overrides.entry import judge
from gateway.admission.overrides.merge import merged
from gateway.admission.overrides.override import Override
from gateway.admission.overrides.rows import said
from gateway.admission.rules import Rulebook
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.in_force import InForce
from gateway.clock import Clock

# Their name among the settings that a store keeps.
OVERRIDES = "overrides"


class Overrides(InForce[Override]):
    """Owns what overrides make of `limits.tenants`."""

    def __init__(self, limits: config.Limits, rulebook: Rulebook, clock: Clock) -> None:
        super().__init__(clock, what="override")
        self._limits = limits
        self._rulebook = rulebook
        self._tenants = dict(limits.tenants)

    def configure(self, limits: config.Limits) -> None:
        """Go by these limits from now on: what is kept is judged anew, and laid over their entries."""
        self._limits = limits
        self._tenants = dict(limits.tenants)
        self.judge_again()
        self._merge({override.tenant for override in self.holding})

    def judge(self, name: str, value: bytes) -> Entry[Override]:
        """Hold it against the limits."""
        return judge(name, value, self._limits)

    def said(self, setting: Override) -> str:
        """Return what it changes."""
        return said(setting)

    def follow(self, changed: Collection[Override]) -> None:
        """Have the rulebook follow."""
        self._merge({override.tenant for override in changed})

    def _merge(self, tenants: Collection[str]) -> None:
        """Lay what holds over the config's entries of `tenants`."""
        its: dict[str, list[Override]] = {tenant: [] for tenant in tenants}
        for override in self.holding:
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
