"""Tenant names in, label values out: a bounded set, however many tenants the tokens name.

Tenants come from claims, so their number and text are the issuers' to choose; a scrape's size is ours (litellm#35666).
"""

from collections.abc import Collection, Iterable

OTHER = "other"
NOBODY = "unknown"

# As long as a name in config.yaml may be. Each name is repeated in some twenty series of every scrape.
MAX_LENGTH = 200


class TenantLabels:
    """Keeps the configured tenants' names, then those of the first that call, up to `max_tenants` in all.

    Every later tenant is `other`; so are all when `max_tenants` is 0, and so is a name that is longer than config.yaml
    allows or not printable (a lone surrogate, which JSON can carry, would make every later scrape fail to encode).
    Where more tenants are configured than `max_tenants`, the configured ones are kept and nobody else.
    """

    def __init__(self, configured: Iterable[str], *, max_tenants: int) -> None:
        self._max_tenants = max_tenants
        self._kept: dict[str, None] = {}  # in the order in which they came
        self.configure(configured, max_tenants=max_tenants)

    def configure(self, configured: Iterable[str], *, max_tenants: int) -> Collection[str]:
        """Go by these from now on: whoever has a label keeps it while there is room. Return who has lost theirs."""
        before, self._max_tenants = self._kept, max_tenants
        self._kept = dict.fromkeys(name for name in configured if _printable(name)) if max_tenants else {}
        for name in before:
            if len(self._kept) < max_tenants:
                self._kept[name] = None
        return before.keys() - self._kept.keys()

    def label(self, tenant: str | None) -> str:
        """Return the label value of a tenant; `unknown` when nobody was authenticated."""
        if tenant is None:
            return NOBODY
        if tenant in self._kept:
            return tenant
        if len(self._kept) < self._max_tenants and _printable(tenant):
            self._kept[tenant] = None
            return tenant
        return OTHER


def _printable(name: str) -> bool:
    return len(name) <= MAX_LENGTH and name.isprintable()
