"""Why a token was refused: one text for every client, one bounded word for operators. Neither ever holds token text."""

from typing import Literal

from gateway.errors import InvalidToken, Unauthorized

Reason = Literal[
    "header",  # not exactly one `Authorization: Bearer <token>`
    "api_key",  # it begins as an API key does, and is none that we know
    "malformed",  # not a token of a form that is accepted here, or one with impossible claims
    "algorithm",  # not one that the issuer's entry allows
    "issuer",  # nobody we trust
    "key",  # no such key in the issuer's key set
    "signature",
    "audience",
    "not_yet_valid",  # `nbf` or `iat` lies in the future
    "required_claim",  # a claim of `require` is absent or has another value
    "inactive",  # its issuer was asked, and does not accept it
    "revoked",  # good, but an operator revoked it, its key or its tenant
    "principal",  # genuine, but names no usable tenant, key, plan or models
]

_TEXT = (
    "The bearer token is not accepted here. Send exactly one Authorization header: the word Bearer, one space, "
    "and a current token from the identity provider, or an API key."
)
# Only the bearer of a genuine token reads this one, and only its issuer or our operator can mend it.
_NOBODY_TEXT = (
    "The token is genuine, but its claims do not name a usable tenant and key. Ask whoever issues your tokens."
)


class TokenRefused(InvalidToken):
    """An `InvalidToken` that also knows why, in a word that may become a metric label."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(_NOBODY_TEXT if reason == "principal" else _TEXT)
        self.reason: Reason = reason


def reason_of(error: Unauthorized) -> str:
    """Return the bounded word for a refusal: a `Reason`, else `missing_token` or `expired_token`."""
    return error.reason if isinstance(error, TokenRefused) else error.code
