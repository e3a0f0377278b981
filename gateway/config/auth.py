"""`auth`: whose tokens are accepted, and where in them stands who calls."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import jmespath
from pydantic import Field, field_validator, model_validator

from gateway.config.section import Duration, Name, Section


class Claims(Section):
    """Where a token says who its bearer is: JMESPath over the verified claims."""

    key: Name = "sub"
    tenant: Name = "org_id || sub"
    plan: Name = "plan"
    models: Name = "models"

    @field_validator("*")
    @classmethod
    def _compiles(cls, expression: str) -> str:
        try:
            # Compiling alone does not tell of functions that do not exist; searching fails for want of claims, too.
            jmespath.compile(expression).search({})
        except (jmespath.exceptions.ParseError, jmespath.exceptions.UnknownFunctionError) as error:
            raise ValueError(f"not a JMESPath expression: {str(error).splitlines()[0]}") from error
        except (ValueError, TypeError, ArithmeticError):
            pass
        return expression


# Asymmetric only: who could verify with a shared secret could sign with it.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"]


class Issuer(Section):
    """Whose tokens are accepted, and with which keys they are verified."""

    issuer: Name
    jwks: Name | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "ES512")
    audience: Name | tuple[Name, ...] | None = None
    leeway: Annotated[Duration, Field(le=300)] = 5.0
    refresh: Annotated[Duration, Field(ge=1)] = 300.0
    cooldown: Annotated[Duration, Field(ge=0.1)] = 10.0
    require: dict[str, str | int | bool] = {}
    claims: Claims = Claims()

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.jwks is None and urlsplit(self.issuer).scheme not in {"http", "https"}:
            raise ValueError("jwks: needed, because keys can be discovered only from an issuer that is an http(s) URL")
        return self


# Who signs with the development key.
DEVELOPMENT_ISSUER = "gateway-development"


class Auth(Section):
    """Who may call."""

    issuers: tuple[Issuer, ...] = ()
    development_key: Name | None = None

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not self.issuers and self.development_key is None:
            raise ValueError("needs at least one entry in issuers, or a development_key; nobody could call")
        names = [issuer.issuer for issuer in self.issuers]
        if len(set(names)) != len(names):
            raise ValueError("issuers: the same issuer stands here twice")
        if DEVELOPMENT_ISSUER in names:
            raise ValueError(f"issuers: {DEVELOPMENT_ISSUER!r} is the name of development_key's own issuer")
        return self
