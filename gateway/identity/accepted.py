"""A token that was found good: whose it is, and for how long a call need not ask again."""

from typing import NamedTuple

from gateway.identity.keyset import KeySet
from gateway.identity.principal import Principal


class Accepted(NamedTuple):
    """Good until `until` (seconds since the epoch), unless the keys of `key_set`, if there is one, change before."""

    principal: Principal
    until: float
    key_set: KeySet | None
