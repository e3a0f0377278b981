"""The value of the Authorization header -> Principal, or the refusal to answer with. The whole of the identity stage.

Owns the issuers' key sets and what is remembered; knows nothing of bodies, limits or HTTP.
"""

import hashlib
from functools import partial
from pathlib import Path

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.identity import development
from gateway.identity.accepted import Accepted
from gateway.identity.api_keys import ApiKeys
from gateway.identity.denied import Denied
from gateway.identity.exchange import Exchange
from gateway.identity.grants import Asked, Grants
from gateway.identity.header import bearer_token
from gateway.identity.introspection import Introspection
from gateway.identity.keyset import FETCH_TIMEOUT_S, KeySet, Observe
from gateway.identity.peek import Peeked, peek
from gateway.identity.permissions import Permissions
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused
from gateway.identity.remembered import Remembered
from gateway.identity.signed import Signed
from gateway.identity.sources import Source, source_of


def _unobserved(_issuer: str, _result: str, _seconds: float) -> None:
    pass


class Authenticator:
    """Says who calls. Built from `auth` of the config.

    `observe` is told the issuer and result of every key set fetch, `asked` of every question to an issuer about a
    token. `start` begins to keep the key sets fresh; `close` ends all background work. The session stays its giver's.
    """

    def __init__(
        self,
        auth: config.Auth,
        session: aiohttp.ClientSession,
        *,
        clock: Clock,
        observe: Observe,
        asked: Asked = _unobserved,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._session = session
        self._clock = clock
        self._observe = observe
        self._asked = asked
        self._fetch_timeout_s = fetch_timeout_s
        self._remembered = Remembered()
        self._permissions = Permissions(auth.tenants)
        self._api_keys = ApiKeys(auth.all_api_keys)
        self._development_key = None if auth.development_key is None else Path(auth.development_key)
        self._signed: dict[str, Signed] = {}
        self._grants: list[Grants] = []
        self._granted_by_issuer: dict[str, Grants] = {}
        self._granted_by_form: dict[config.Form, Grants] = {}
        for issuer in auth.issuers:
            self._trust(issuer)
        if self._development_key is not None:
            source = partial(development.read_key_set, self._development_key)
            self._verify_by(development.issuer(str(self._development_key)), source)

    def start(self) -> None:
        """Begin to fetch key sets, now and in the background; does not wait for them.

        Raises:
            DevelopmentKeyUnusable: a development key is configured and cannot be read.
        """
        if self._development_key is not None:
            development.load(self._development_key)
        for signed in self._signed.values():
            signed.key_set.start()

    async def close(self) -> None:
        """End the background work."""
        for grants in self._grants:
            await grants.close()
        for signed in self._signed.values():
            await signed.key_set.close()

    @property
    def ready(self) -> bool:
        """Whether the keys of some issuer have been had, or somebody needs none; until then every call is 503."""
        needs_none = self._api_keys or not self._signed
        return bool(needs_none) or any(signed.key_set.keys is not None for signed in self._signed.values())

    def key_set_ages(self) -> list[tuple[str, float]]:
        """Return each issuer's name and how many seconds ago its key set was fetched well."""
        return [(name, signed.key_set.age_s) for name, signed in self._signed.items()]

    def deny(self, denied: Denied) -> None:
        """Refuse from now on the tokens of those who are `denied`, and of nobody else."""
        self._remembered.deny(denied)

    def recall(self, authorization: bytes | None) -> Principal | None:
        """Return the principal of a call whose Authorization header, to the byte, was verified before; else None.

        Raises:
            TokenRefused: `revoked`.
        """
        if authorization is None:
            return None
        return self._remembered.get(hashlib.sha256(authorization).digest(), self._clock.now())

    async def authenticate(self, authorization: bytes | None) -> Principal:
        """Return the principal of a call, given its Authorization header.

        Does not suspend unless the token's key is unknown, or its issuer must be asked about it.

        Raises:
            Unauthorized: MissingToken, TokenRefused (an InvalidToken) or ExpiredToken.
            IdentityUnavailable: no key set of the token's issuer could be had yet, or the issuer could not be asked.
        """
        digest = hashlib.sha256(authorization or b"").digest()
        principal = self._remembered.get(digest, self._clock.now())
        if principal is not None:
            return principal
        accepted = await self._judge(bearer_token(authorization))
        # Nothing suspends between its judgement and here: it is remembered with the very keys that verified it.
        principal = self._permissions.narrowed(accepted.principal)
        return self._remembered.put(digest, Accepted(principal, accepted.until, accepted.key_set))

    async def _judge(self, token: str) -> Accepted:
        """Find who is to verify a token by what it says of itself, and have it verified by that one alone."""
        if self._api_keys.claims(token):
            return self._api_keys.accept(token, now=self._clock.now())
        peeked = peek(token)
        if not isinstance(peeked, Peeked):
            if (grants := self._granted_by_form.get(peeked)) is not None:
                return await grants.accept(token)
            raise TokenRefused("malformed")
        if (grants := self._granted_by_issuer.get(peeked.issuer)) is not None:
            return await grants.accept(token)
        if (signed := self._signed.get(peeked.issuer)) is not None:
            return await signed.accept(peeked)
        raise TokenRefused("issuer")

    def _trust(self, issuer: config.Issuer) -> None:
        if issuer.introspection is not None:
            judge = Introspection(issuer, issuer.introspection, session=self._session, clock=self._clock)
            grants = self._ask_at(issuer, issuer.introspection, judge)
            self._granted_by_issuer[issuer.issuer] = grants
            return
        key_set = self._verify_by(issuer, source_of(issuer, self._session))
        if issuer.exchange is not None:
            exchange = Exchange(issuer, issuer.exchange, session=self._session, key_set=key_set, clock=self._clock)
            self._ask_at(issuer, issuer.exchange, exchange, key_set)

    def _verify_by(self, issuer: config.Issuer, source: Source) -> KeySet:
        key_set = KeySet(issuer, source, clock=self._clock, observe=self._observe, timeout_s=self._fetch_timeout_s)
        self._signed[issuer.issuer] = Signed(issuer, key_set, clock=self._clock)
        return key_set

    def _ask_at(
        self,
        issuer: config.Issuer,
        remote: config.Remote,
        judge: Exchange | Introspection,
        key_set: KeySet | None = None,
    ) -> Grants:
        grants = Grants(
            issuer.issuer, judge, key_set=key_set, clock=self._clock, timeout_s=remote.timeout, asked=self._asked
        )
        self._grants.append(grants)
        self._granted_by_issuer |= dict.fromkeys(remote.issuers, grants)
        self._granted_by_form |= dict.fromkeys(remote.forms, grants)
        return grants
