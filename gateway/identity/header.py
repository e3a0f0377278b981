"""The values of the Authorization headers -> the text of the one bearer token (RFC 6750 section 2.1).

Refuses whatever two readers could understand differently; never picks one header or one token out of several.
"""

from collections.abc import Sequence

from gateway.errors import MissingToken
from gateway.identity.refused import TokenRefused

# A passport has about 600 characters, a token with many groups 4 KiB; every character of a stranger's costs us CPU.
MAX_TOKEN_CHARACTERS = 16 * 2**10
# What a field of a request's head may have, its name included: the longest token, and room for `Authorization: Bearer`.
MAX_FIELD_BYTES = MAX_TOKEN_CHARACTERS + 64


def bearer_token(values: Sequence[str]) -> str:
    """Return the token of exactly one `Bearer <token>`: the scheme in any case, then exactly one space.

    Raises:
        MissingToken: no header, a bare `Bearer`, or another scheme. RFC 6750 section 3.1 counts an unsupported method
            as no authentication; a tab in place of the space makes another scheme.
        TokenRefused: several headers, several words, a list, too long, or beyond ASCII (as aiohttp hands over bytes
            that are not UTF-8: surrogates).
    """
    if len(values) > 1:
        raise TokenRefused("header")
    scheme, _, token = values[0].partition(" ") if values else ("", "", "")
    if not token or scheme.lower() != "bearer":
        raise MissingToken("No bearer token came with the call. Send it as: Authorization: Bearer TOKEN")
    if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii() or " " in token or "," in token:
        raise TokenRefused("header")
    return token
