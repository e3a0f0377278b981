"""All that `auth` of a config amounts to: whose tokens are accepted, who judges each, and what its bearer may use.

It is replaced as a whole when the config is read again. What is the same in both goes on in the next one: no key is
fetched and no issuer asked again because something else has changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.identity import development
from gateway.identity.accepted import Accepted
from gateway.identity.api_keys import ApiKeys
from gateway.identity.exchange import Exchange
from gateway.identity.grants import Asked, Grants
from gateway.identity.introspection import Introspection
from gateway.identity.keyset import KeySet, Observe
from gateway.identity.peek import Peeked, peek
from gateway.identity.permissions import Permissions
from gateway.identity.refused import TokenRefused
from gateway.identity.signed import Signed
from gateway.identity.sources import Source, source_of


@dataclass(frozen=True, slots=True)
class Means:
    """What issuers are asked with, and who is told of it."""

    session: aiohttp.ClientSession
    clock: Clock
    observe: Observe
    asked: Asked
    fetch_timeout_s: float


@dataclass(frozen=True, slots=True)
class Judges:
    """Who judges the tokens of one issuer's entry: its key set, its own word, or both in turn."""

    entry: config.Issuer
    signed: Signed | None
    grants: Grants | None

    @property
    def key_set(self) -> KeySet | None:
        """The issuer's keys, if it has some."""
        return None if self.signed is None else self.signed.key_set

    async def retire(self) -> None:
        """Begin nothing more, and have what is under way answered."""
        if self.grants is not None:
            await self.grants.retire()
        if self.key_set is not None:
            await self.key_set.retire()

    async def close(self) -> None:
        """End everything."""
        if self.grants is not None:
            await self.grants.close()
        if self.key_set is not None:
            await self.key_set.close()


class Trust:
    """Judges tokens by one config's `auth`. `before` is what it takes the place of."""

    def __init__(self, auth: config.Auth, means: Means, *, before: "Trust | None" = None) -> None:
        self.auth = auth
        self._means = means
        self._permissions = Permissions(auth.tenants)
        self._api_keys = ApiKeys(auth.all_api_keys)
        known = {} if before is None else {judges.entry.issuer: judges for judges in before.judges}
        self.judges: list[Judges] = [self._judges(*one, known) for one in _issuers(auth, means.session)]
        self._signed = {one.entry.issuer: one.signed for one in self.judges if one.signed is not None}
        self._granted_by_issuer: dict[str, Grants] = {}
        self._granted_by_form: dict[config.Form, Grants] = {}
        for one in self.judges:
            if one.grants is not None and one.entry.remote is not None:
                self._granted_by_issuer |= dict.fromkeys(one.entry.remote.issuers, one.grants)
                self._granted_by_form |= dict.fromkeys(one.entry.remote.forms, one.grants)
                if one.signed is None:
                    self._granted_by_issuer[one.entry.issuer] = one.grants

    def start(self, *, before: "Trust | None" = None) -> None:
        """Begin to fetch the key sets that `before` does not have, now and in the background; does not wait for them.

        Raises:
            DevelopmentKeyUnusable: a development key is configured and cannot be read.
        """
        if self.auth.development_key is not None:
            development.load(Path(self.auth.development_key))
        for judges in self.beyond(before):
            if judges.key_set is not None:
                judges.key_set.start()

    def beyond(self, other: "Trust | None") -> list[Judges]:
        """Return the judges that are not `other`'s too."""
        theirs = [] if other is None else other.judges
        return [judges for judges in self.judges if not any(judges is one for one in theirs)]

    async def fetched(self, *, before: "Trust") -> None:
        """Wait until the key sets that `before` does not have are here, or could not be had."""
        new = [judges.key_set for judges in self.beyond(before)]
        without = [key_set for key_set in new if key_set is not None and key_set.keys is None]
        await asyncio.gather(*[key_set.fetched() for key_set in without])

    @property
    def ready(self) -> bool:
        """Whether the keys of some issuer have been had, or somebody needs none; until then every call is 503."""
        needs_none = self._api_keys or not self._signed
        return bool(needs_none) or any(signed.key_set.keys is not None for signed in self._signed.values())

    def key_set_ages(self) -> list[tuple[str, float]]:
        """Return each issuer's name and how many seconds ago its key set was fetched well."""
        return [(name, signed.key_set.age_s) for name, signed in self._signed.items()]

    async def judge(self, token: str) -> Accepted:
        """Return the principal of a token, within what the config permits it. Nothing suspends after its judgement.

        Raises:
            Unauthorized: TokenRefused or ExpiredToken.
            IdentityUnavailable: it cannot be judged at the moment.
        """
        if self._api_keys.claims(token):
            accepted = self._api_keys.accept(token, now=self._means.clock.now())
        else:
            accepted = await self._judge(token)
        principal = self._permissions.narrowed(accepted.principal)
        return accepted if principal is accepted.principal else accepted._replace(principal=principal)

    def _judge(self, token: str) -> Awaitable[Accepted]:
        """Find who is to verify a token by what it says of itself, and have it verified by that one alone."""
        peeked = peek(token)
        if not isinstance(peeked, Peeked):
            if (grants := self._granted_by_form.get(peeked)) is not None:
                return grants.accept(token)
            raise TokenRefused("malformed")
        if (grants := self._granted_by_issuer.get(peeked.issuer)) is not None:
            return grants.accept(token)
        if (signed := self._signed.get(peeked.issuer)) is not None:
            return signed.accept(peeked)
        raise TokenRefused("issuer")

    def _judges(self, entry: config.Issuer, source: Callable[[], Source], known: dict[str, Judges]) -> Judges:
        """Return the judges of an entry: those that there are, if it is the same, and else new ones."""
        means, before = self._means, known.get(entry.issuer)
        if before is not None and before.entry == entry:
            return before
        if entry.introspection is not None:
            word = Introspection(entry, entry.introspection, session=means.session, clock=means.clock)
            return Judges(entry, None, self._grants(entry, entry.introspection, word, None))
        key_set = KeySet(entry, source(), clock=means.clock, observe=means.observe, timeout_s=means.fetch_timeout_s)
        if before is not None and before.key_set is not None and _origin(before.entry) == _origin(entry):
            key_set.continue_from(before.key_set)
        signed = Signed(entry, key_set, clock=means.clock)
        if entry.exchange is None:
            return Judges(entry, signed, None)
        exchange = Exchange(entry, entry.exchange, session=means.session, key_set=key_set, clock=means.clock)
        return Judges(entry, signed, self._grants(entry, entry.exchange, exchange, key_set))

    def _grants(
        self, entry: config.Issuer, remote: config.Remote, judge: Exchange | Introspection, key_set: KeySet | None
    ) -> Grants:
        means = self._means
        return Grants(
            entry.issuer, judge, key_set=key_set, clock=means.clock, timeout_s=remote.timeout, asked=means.asked
        )


def _issuers(auth: config.Auth, session: aiohttp.ClientSession) -> Iterable[tuple[config.Issuer, Callable[[], Source]]]:
    """Yield every issuer's entry and what makes the source of its keys."""
    for issuer in auth.issuers:
        yield issuer, partial(source_of, issuer, session)
    if auth.development_key is not None:
        path = Path(auth.development_key)
        yield development.issuer(str(path)), lambda: partial(development.read_key_set, path)


def _origin(issuer: config.Issuer) -> tuple[str | None, ...]:
    """Return all that says where an issuer's keys come from."""
    return issuer.issuer, issuer.jwks, issuer.jwks_token, issuer.ca
