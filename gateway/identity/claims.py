"""Verified claims -> Principal, by the JMESPath expressions of the issuer's entry. Never guesses what is absent."""

from typing import Any

from gateway import config
from gateway.identity.expression import compiled
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused

# Names become store keys, labels and log fields. Issuers' ids have up to 100 characters, an e-mail address 254.
MAX_NAME_CHARACTERS = 256


class ClaimMapping:
    """The compiled expressions of one issuer's `claims`."""

    def __init__(self, claims: config.Claims) -> None:
        self._tenant = compiled(claims.tenant)
        self._key = compiled(claims.key)
        self._plan = compiled(claims.plan)
        self._models = compiled(claims.models)

    def principal(self, claims: dict[str, Any]) -> Principal:
        """Return who the claims name.

        Raises:
            TokenRefused: `principal`, when tenant or key is null or no name, or plan or models is malformed.
        """
        try:
            tenant, key = self._tenant(claims), self._key(claims)
            plan, models = self._plan(claims), self._models(claims)
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:  # a JMESPathError is a ValueError
            raise TokenRefused("principal") from error
        return Principal(
            tenant=_name(tenant),
            key=_name(key),
            plan=None if plan is None or plan == "" else _name(plan),
            models=None if models is None else _names(models),
            token_id=_token_id(claims.get("jti")),
        )


def _name(value: object) -> str:
    """Return a name: 1 to 256 printable characters, so no NUL, line break, bidi control or lone surrogate."""
    if isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARACTERS and value.isprintable():
        return value
    raise TokenRefused("principal")


def _token_id(value: object) -> str | None:
    """Return the token's id, if it can be named: it decides nothing, so that one which cannot spoils nothing."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARACTERS else None


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TokenRefused("principal")
    return tuple(_name(one) for one in value)
