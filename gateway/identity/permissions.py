"""A principal as its credential says -> the same, held within what the config permits its tenant and its key."""

from collections.abc import Mapping
from dataclasses import replace

from gateway import config
from gateway.identity.principal import Principal


class Permissions:
    """What the config's `auth.tenants` permit. Whoever is not named there may use what the credential says."""

    def __init__(self, tenants: Mapping[str, config.TenantPermissions]) -> None:
        self._tenants = tenants

    def narrowed(self, principal: Principal) -> Principal:
        """Return the principal with all lists that must permit a model."""
        tenant = self._tenants.get(principal.tenant)
        if tenant is None:
            return principal
        key = tenant.keys.get(principal.key)
        lists = (tenant.models, None if key is None else key.models)
        return replace(principal, within=tuple(one for one in lists if one is not None))
