"""The value of the Authorization header -> Principal, or the refusal to answer with. The whole of the identity stage.

Owns the issuers' key sets and what is remembered; knows nothing of bodies, limits or HTTP.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.identity import development
from gateway.identity.claims import ClaimMapping
from gateway.identity.header import bearer_token
from gateway.identity.keyset import FETCH_TIMEOUT_S, KeySet, Observe
from gateway.identity.peek import peek
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused
from gateway.identity.remembered import Remembered
from gateway.identity.sources import Source, source_of
from gateway.identity.verify import verify


@dataclass(frozen=True, slots=True)
class _Trusted:
    issuer: config.Issuer
    key_set: KeySet
    mapping: ClaimMapping


class Authenticator:
    """Says who calls. Built from `auth` of the config; `observe` is told the issuer and result of every key set fetch.

    `start` begins to keep the key sets fresh; `close` ends that. The session stays its giver's.
    """

    def __init__(
        self,
        auth: config.Auth,
        session: aiohttp.ClientSession,
        *,
        clock: Clock,
        observe: Observe,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._clock = clock
        self._remembered = Remembered()
        self._development_key = None if auth.development_key is None else Path(auth.development_key)
        self._trusted: dict[str, _Trusted] = {}

        def trust(issuer: config.Issuer, source: Source) -> None:
            key_set = KeySet(issuer, source, clock=clock, observe=observe, timeout_s=fetch_timeout_s)
            self._trusted[issuer.issuer] = _Trusted(issuer, key_set, ClaimMapping(issuer.claims))

        for issuer in auth.issuers:
            trust(issuer, source_of(issuer, session))
        if self._development_key is not None:
            source = partial(development.read_key_set, self._development_key)
            trust(development.issuer(str(self._development_key)), source)

    def start(self) -> None:
        """Begin to fetch key sets, now and in the background; does not wait for them.

        Raises:
            DevelopmentKeyUnusable: a development key is configured and cannot be read.
        """
        if self._development_key is not None:
            development.load(self._development_key)
        for trusted in self._trusted.values():
            trusted.key_set.start()

    async def close(self) -> None:
        """End the background work."""
        for trusted in self._trusted.values():
            await trusted.key_set.close()

    @property
    def ready(self) -> bool:
        """Whether the keys of at least one issuer have been had: until then every call is IdentityUnavailable."""
        return any(trusted.key_set.keys is not None for trusted in self._trusted.values())

    def recall(self, authorization: bytes | None) -> Principal | None:
        """Return the principal of a call whose Authorization header, to the byte, was verified before; else None."""
        if authorization is None:
            return None
        return self._remembered.get(hashlib.sha256(authorization).digest(), self._clock.now())

    async def authenticate(self, authorization: bytes | None) -> Principal:
        """Return the principal of a call, given its Authorization header.

        Does not suspend unless the token's key is unknown.

        Raises:
            Unauthorized: MissingToken, TokenRefused (an InvalidToken) or ExpiredToken.
            IdentityUnavailable: no key set of the token's issuer could be had yet.
        """
        principal = self.recall(authorization)
        return await self._verify(authorization) if principal is None else principal

    async def _verify(self, authorization: bytes | None) -> Principal:
        token = bearer_token(authorization)
        digest = hashlib.sha256(authorization or b"").digest()
        peeked = peek(token)
        trusted = self._trusted.get(peeked.issuer)
        if trusted is None:
            raise TokenRefused("issuer")
        if peeked.algorithm not in trusted.issuer.algorithms:
            raise TokenRefused("algorithm")
        key = await trusted.key_set.find(peeked.key_id, peeked.algorithm)
        # Nothing below suspends: the token is remembered with the very keys that verified it.
        verified = verify(token, key, issuer=trusted.issuer, now=self._clock.now())
        principal = trusted.mapping.principal(verified.claims)
        self._remembered.put(digest, principal, until=verified.until, key_set=trusted.key_set)
        return principal
