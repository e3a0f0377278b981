"""Whose tokens are refused although they are good. A value: it is replaced, never changed."""

from dataclasses import dataclass

from gateway.identity.principal import Principal


@dataclass(frozen=True, slots=True)
class Denied:
    """Tenants; keys, as (tenant, key); and single tokens, as (tenant, `jti`)."""

    tenants: frozenset[str] = frozenset()
    keys: frozenset[tuple[str, str]] = frozenset()
    tokens: frozenset[tuple[str, str]] = frozenset()

    def has(self, principal: Principal) -> bool:
        """Whether the token of this principal is one of them."""
        tenant = principal.tenant
        return (
            tenant in self.tenants
            or (tenant, principal.key) in self.keys
            or (principal.token_id is not None and (tenant, principal.token_id) in self.tokens)
        )


NOBODY = Denied()
