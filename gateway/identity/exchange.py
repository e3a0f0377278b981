"""A bearer token -> a passport for it at the issuer's token endpoint (RFC 8693) -> who that names.

The passport is verified like any token from outside: whoever can answer in the endpoint's place gains nothing. Never
looks into the bearer token, which only its issuer can open.
"""

from http import HTTPStatus

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.errors import ExpiredToken
from gateway.identity import grant
from gateway.identity.authorities import Authorities
from gateway.identity.claims import ClaimMapping
from gateway.identity.endpoint import Answer, Endpoint, IssuerFailed
from gateway.identity.grant import Grant
from gateway.identity.header import MAX_TOKEN_CHARACTERS
from gateway.identity.keyset import KeySet
from gateway.identity.peek import Peeked, peek
from gateway.identity.refused import TokenRefused
from gateway.identity.verify import verify

_GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 the name of a kind
# What says that the bearer's token is at fault (RFC 8693 section 2.2.2, RFC 6749 section 5.2, RFC 6750 section 3.1),
# or that it is good but not for this organization. Any other word is about our request or our credentials.
_TOKEN_AT_FAULT = {"access_denied", "invalid_grant", "invalid_request", "invalid_scope", "invalid_token"}
# Of a genuine passport, what only the account can change.
_ACCOUNT_AT_FAULT = {"required_claim", "principal"}


class Exchange:
    """Swaps bearer tokens by one issuer's `exchange`."""

    def __init__(
        self,
        issuer: config.Issuer,
        exchange: config.Exchange,
        *,
        session: aiohttp.ClientSession,
        key_set: KeySet,
        clock: Clock,
    ) -> None:
        self._issuer = issuer
        self._exchange = exchange
        self._endpoint = Endpoint(exchange, session, authorities=Authorities(issuer.ca))
        self._key_set = key_set
        self._mapping = ClaimMapping(issuer.claims)
        self._clock = clock
        asked_for = {
            "requested_token_type": exchange.requested_token_type,
            "audience": exchange.audience,
            "resource": exchange.resource,
            "x_organization_id": exchange.organization,
            "x_project_id": exchange.project,
        }
        self._form = {"grant_type": _GRANT_TYPE, "subject_token_type": _ACCESS_TOKEN}
        self._form |= {name: value for name, value in asked_for.items() if value is not None}

    async def ask(self, token: str, *, renewal: bool) -> Grant:
        """Return what the issuer grants to the bearer of `token`.

        Raises:
            TokenRefused: the issuer does not accept the token (`inactive`), or its passport names nobody we serve.
            IdentityUnavailable: the issuer cannot be asked, refuses us, or gave a passport that does not verify.
        """
        answer = await self._endpoint.post({**self._form, "subject_token": token}, renewal=renewal)
        passport = self._passport(answer)
        try:
            return await self._verify(passport)
        except (TokenRefused, ExpiredToken) as error:
            reason = error.reason if isinstance(error, TokenRefused) else "expired"
            if reason in _ACCOUNT_AT_FAULT:
                raise
            raise IssuerFailed(f"{self._endpoint.url} gave a token that does not verify: {reason}") from error

    def _passport(self, answer: Answer) -> str:
        if answer.status == HTTPStatus.OK:
            passport = answer.members.get("access_token")
            if isinstance(passport, str) and passport.isascii() and len(passport) <= MAX_TOKEN_CHARACTERS:
                return passport
            raise IssuerFailed(f"{self._endpoint.url} answered without an access_token")
        # Without credentials of ours there is nothing else that a 401 could refuse.
        unlabelled = answer.status == HTTPStatus.UNAUTHORIZED and self._exchange.client_id is None
        if answer.error in _TOKEN_AT_FAULT or (unlabelled and not answer.error):
            raise TokenRefused("inactive")
        raise IssuerFailed(f"{self._endpoint.url} answered {answer.status} {_word(answer.error)}")

    async def _verify(self, passport: str) -> Grant:
        peeked = peek(passport)
        if not isinstance(peeked, Peeked):
            raise TokenRefused("malformed")
        if peeked.issuer != self._issuer.issuer:
            raise TokenRefused("issuer")
        if peeked.algorithm not in self._issuer.algorithms:
            raise TokenRefused("algorithm")
        key = await self._key_set.find(peeked.key_id, peeked.algorithm, vouched=True)
        now = self._clock.now()
        verified = verify(peeked, key, issuer=self._issuer, now=now)
        principal = self._mapping.principal(verified.claims)
        return grant.for_passport(principal, key, now=now, expires_at=verified.until - self._issuer.leeway)


def _word(error: str) -> str:
    """Return an error's word for the log, where it is one."""
    return error if len(error) <= 64 and error.isascii() and error.isprintable() else ""  # noqa: PLR2004 words are short
