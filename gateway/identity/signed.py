"""A signed token of one issuer -> its principal, by the issuer's key set. Asks nobody while the key is known."""

from gateway import config
from gateway.clock import Clock
from gateway.identity.accepted import Accepted
from gateway.identity.claims import ClaimMapping
from gateway.identity.keyset import KeySet
from gateway.identity.peek import Peeked
from gateway.identity.refused import TokenRefused
from gateway.identity.verify import verify


class Signed:
    """Verifies the tokens of one issuer's entry."""

    def __init__(self, issuer: config.Issuer, key_set: KeySet, *, clock: Clock) -> None:
        self.key_set = key_set
        self._issuer = issuer
        self._mapping = ClaimMapping(issuer.claims)
        self._clock = clock

    async def accept(self, token: Peeked) -> Accepted:
        """Return the principal of a token. Does not suspend unless its key is unknown.

        Raises:
            Unauthorized: TokenRefused or ExpiredToken.
            IdentityUnavailable: no key set of the issuer could be had yet.
        """
        if token.algorithm not in self._issuer.algorithms:
            raise TokenRefused("algorithm")
        key = self.key_set.known(token.key_id, token.algorithm)
        if key is None:
            key = await self.key_set.find(token.key_id, token.algorithm)
        # Nothing below suspends: the token is remembered with the very keys that verified it.
        verified = verify(token, key, issuer=self._issuer, now=self._clock.now())
        return Accepted(self._mapping.principal(verified.claims), verified.until, self.key_set)
