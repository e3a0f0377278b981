"""A bearer token -> what its issuer says of it when asked (RFC 7662, or OIDC's UserInfo) -> who that names, a while."""

from http import HTTPStatus
from typing import Any

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.identity import grant
from gateway.identity.authorities import Authorities
from gateway.identity.claims import ClaimMapping
from gateway.identity.endpoint import Answer, Endpoint, IssuerFailed
from gateway.identity.grant import Grant
from gateway.identity.refused import TokenRefused
from gateway.identity.verify import check, meant_for


class Introspection:
    """Asks one issuer's `introspection`."""

    def __init__(
        self,
        issuer: config.Issuer,
        introspection: config.Introspection,
        *,
        session: aiohttp.ClientSession,
        clock: Clock,
    ) -> None:
        self._issuer = issuer
        self._introspection = introspection
        self._endpoint = Endpoint(introspection, session, authorities=Authorities(issuer.ca))
        self._mapping = ClaimMapping(issuer.claims)
        self._clock = clock

    async def ask(self, token: str, *, renewal: bool) -> Grant:
        """Return what the issuer says of the bearer of `token`.

        Raises:
            TokenRefused: the token is not active, or what is said of it is not what the issuer's entry asks.
            ExpiredToken: it was active until now.
            IdentityUnavailable: the issuer cannot be asked, or refuses us.
        """
        if self._introspection.answer == "userinfo":
            claims = self._userinfo(await self._endpoint.get_as(token, renewal=renewal))
        else:
            form = {"token": token, "token_type_hint": "access_token"}
            claims = self._active(await self._endpoint.post(form, renewal=renewal))
        now = self._clock.now()
        verified = check(claims, issuer=self._issuer, now=now)
        principal = self._mapping.principal(claims)
        return grant.for_a_while(principal, now=now, until=min(now + self._introspection.cache, verified.until))

    def _userinfo(self, answer: Answer) -> dict[str, Any]:
        if answer.status == HTTPStatus.OK and answer.members:
            return answer.members
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise TokenRefused("inactive")
        raise IssuerFailed(f"{self._endpoint.url} answered {answer.status}; expected claims as a JSON object")

    def _active(self, answer: Answer) -> dict[str, Any]:
        """Return the members of an answer about an active token, checked for whom it was made and by whom."""
        active = answer.members.get("active")
        if answer.status != HTTPStatus.OK or not isinstance(active, bool):
            raise IssuerFailed(f"{self._endpoint.url} answered {answer.status}; expected 200 and a member `active`")
        if not active:
            raise TokenRefused("inactive")
        if answer.members.get("iss", self._issuer.issuer) != self._issuer.issuer:
            raise TokenRefused("issuer")
        if not meant_for(answer.members.get("aud"), self._issuer.audience):
            raise TokenRefused("audience")
        return answer.members
