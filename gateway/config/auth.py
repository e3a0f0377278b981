"""`auth`: whose tokens are accepted, and where in them stands who calls."""

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    StrictStr,
    StringConstraints,
    model_validator,
)

from gateway.config import units
from gateway.config.api_keys import ApiKey, FileOfApiKeys
from gateway.config.claims import Claims, Required
from gateway.config.section import Duration, Name, Section

# Asymmetric only: who could verify with a shared secret could sign with it.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"]


# What a token looks like that does not say whose it is: a JWE (five parts), or any other text (RFC 6750 section 2.1).
Form = Literal["encrypted", "opaque"]


_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s#]*)?")


def _endpoint(url: str) -> str:
    if _URL.fullmatch(url) is None:
        raise ValueError("expected an http(s) URL without user, password and fragment")
    return url


class Remote(Section):
    """An issuer's own word on a token: where it is asked for, as whom, for which tokens, and for how long one waits."""

    url: Annotated[StrictStr, StringConstraints(max_length=2000), AfterValidator(_endpoint)]
    client_id: Name | None = None
    client_secret: SecretStr | None = None
    client_auth: Literal["basic", "post"] = "basic"
    forms: tuple[Form, ...] = ("encrypted", "opaque")
    issuers: tuple[Name, ...] = ()
    timeout: Annotated[Duration, Field(ge=0.05, le=60)] = 5.0
    concurrency: Annotated[int, BeforeValidator(units.integer), Field(strict=True, ge=2, le=1000)] = 16

    @model_validator(mode="after")
    def _credentials_are_whole(self) -> Self:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_id: needed with a client_secret")
        return self


class Exchange(Remote):
    """Bearer tokens are swapped for tokens of this issuer (RFC 8693), which are then verified by its key set."""

    requested_token_type: Name | None = None
    audience: Name | None = None
    resource: Name | None = None
    organization: Name | None = None
    project: Name | None = None

    @model_validator(mode="after")
    def _a_project_is_an_organizations(self) -> Self:
        if self.project is not None and self.organization is None:
            raise ValueError("organization: needed with a project")
        return self


class Introspection(Remote):
    """The issuer is asked whether a token is active, and what it says (RFC 7662, or OIDC's UserInfo)."""

    answer: Literal["introspection", "userinfo"] = "introspection"
    cache: Annotated[Duration, Field(ge=1, le=3600)] = 30.0

    @model_validator(mode="after")
    def _userinfo_is_asked_as_the_bearer(self) -> Self:
        if self.answer == "userinfo" and self.client_id is not None:
            raise ValueError(
                "client_id: UserInfo is asked with the bearer's own token, not with a client's credentials"
            )
        return self


def _audience(value: object) -> object:
    several = isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value)
    if value is None or isinstance(value, str) or several:
        return value
    raise ValueError("expected an audience as text, or a list of at least one")


class Issuer(Section):
    """Whose tokens are accepted, and how they are verified: by a key set, or by the issuer's own word."""

    issuer: Name
    jwks: Name | None = None
    jwks_token: Name | None = None
    ca: Name | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "ES512")
    audience: Annotated[Name | tuple[Name, ...] | None, BeforeValidator(_audience)] = None
    leeway: Annotated[Duration, Field(le=300)] = 5.0
    refresh: Annotated[Duration, Field(ge=1)] = 300.0
    cooldown: Annotated[Duration, Field(ge=0.1)] = 10.0
    require: dict[str, Required] = {}
    claims: Claims = Claims()
    exchange: Exchange | None = None
    introspection: Introspection | None = None

    @property
    def remote(self) -> Remote | None:
        """How the issuer is asked about tokens; None where its key set is enough."""
        return self.exchange or self.introspection

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.introspection is not None:
            return self
        if self.jwks is None and urlsplit(self.issuer).scheme not in {"http", "https"}:
            raise ValueError("jwks: needed, because keys can be discovered only from an issuer that is an http(s) URL")
        return self

    @model_validator(mode="after")
    def _passports_are_for_us(self) -> Self:
        asked = {self.exchange.audience, self.exchange.resource} - {None} if self.exchange is not None else set()
        accepted = {self.audience} if isinstance(self.audience, str | None) else set(self.audience)
        if asked and not asked & accepted:
            raise ValueError("audience: must name what exchange.audience or exchange.resource asks for")
        return self

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.introspection is None:
            return self
        if self.exchange is not None:
            raise ValueError("exchange, introspection: one of them at most")
        if self.jwks is not None or self.jwks_token is not None:
            raise ValueError(
                "jwks, jwks_token: have no use with introspection, where the issuer itself judges every token"
            )
        if self.introspection.answer == "userinfo" and self.audience is not None:
            raise ValueError("audience: UserInfo does not tell for whom a token was made")
        return self


class KeyPermissions(Section):
    """What one key of a tenant may use, whatever its token says."""

    models: tuple[Name, ...] | None = None


class TenantPermissions(Section):
    """What a tenant may use, whatever its tokens say, and its keys."""

    models: tuple[Name, ...] | None = None
    keys: dict[Name, KeyPermissions] = {}


# Who signs with the development key.
DEVELOPMENT_ISSUER = "gateway-development"


class Auth(Section):
    """Who may call."""

    issuers: tuple[Issuer, ...] = ()
    development_key: Name | None = None
    api_keys: tuple[ApiKey, ...] = ()
    api_keys_file: FileOfApiKeys = None
    tenants: dict[Name, TenantPermissions] = {}

    @property
    def all_api_keys(self) -> tuple[ApiKey, ...]:
        """Those of the config and those of the file."""
        return self.api_keys + (self.api_keys_file or ())

    def plan_of(self, tenant: str, key: str) -> str | None:
        """Return the plan of this API key, by its first entry; None where there is no such key, or it names none."""
        return next((one.plan for one in self.all_api_keys if (one.tenant, one.key) == (tenant, key)), None)

    def in_the_clear(self) -> list[str]:
        """Return the paths of URLs whose answers, or the tokens sent there, anybody on the way can read and change."""
        found: list[str] = []
        for position, issuer in enumerate(self.issuers):
            where = f"auth.issuers[{position}]"
            urls = {"jwks": issuer.jwks} if issuer.introspection is None else {}
            if issuer.introspection is None and issuer.jwks is None:
                urls = {"issuer": issuer.issuer}
            urls |= {} if issuer.exchange is None else {"exchange.url": issuer.exchange.url}
            urls |= {} if issuer.introspection is None else {"introspection.url": issuer.introspection.url}
            found += [f"{where}.{name}" for name, url in urls.items() if url is not None and _is_clear(url)]
        return found

    def expired(self, now_s: float) -> list[str]:
        """Return the paths of API keys that are refused already, with their names."""
        lists = {"api_keys": self.api_keys, "api_keys_file": self.api_keys_file or ()}
        return [
            f"auth.{name}[{position}], {one.key!r},"
            for name, keys in lists.items()
            for position, one in enumerate(keys)
            if one.expires is not None and one.expires <= now_s
        ]

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not self.issuers and self.development_key is None and not self.all_api_keys:
            raise ValueError("needs at least one entry in issuers or api_keys, or a development_key; nobody could call")
        names = [issuer.issuer for issuer in self.issuers]
        if len(set(names)) != len(names):
            raise ValueError("issuers: the same issuer stands here twice")
        if DEVELOPMENT_ISSUER in names:
            raise ValueError(f"issuers: {DEVELOPMENT_ISSUER!r} is the name of development_key's own issuer")
        return self

    @model_validator(mode="after")
    def _no_token_has_two_judges(self) -> Self:
        judges = {("iss", issuer.issuer): issuer.issuer for issuer in self.issuers}
        for entry in self.issuers:
            if entry.remote is None:
                continue
            claimed = [("iss", name) for name in entry.remote.issuers] + [("form", form) for form in entry.remote.forms]
            for kind, name in claimed:
                judge = judges.setdefault((kind, name), entry.issuer)
                if judge != entry.issuer:
                    what = f"{name} tokens" if kind == "form" else f"tokens of {name!r}"
                    raise ValueError(f"issuers: {what} would go to {judge!r} and to {entry.issuer!r}")
        return self

    @model_validator(mode="after")
    def _each_api_key_is_one(self) -> Self:
        seen: dict[str, str] = {}
        for one in self.all_api_keys:
            whose = f"key {one.key!r} of tenant {one.tenant!r}"
            if seen.setdefault(one.sha256, whose) is not whose:
                raise ValueError(f"api_keys: {whose} has the same sha256 as {seen[one.sha256]}")
        return self


def _is_clear(url: str) -> bool:
    """Whether a URL is plain HTTP to another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}
