"""The value of the Authorization header -> the text of the one bearer token (RFC 6750 section 2.1).

Refuses whatever two readers could understand differently; never picks one header or one token out of several.
"""

from gateway.errors import MissingToken
from gateway.identity.refused import TokenRefused

# A passport has about 600 characters, a token with many groups 4 KiB; every character of a stranger's costs us CPU.
MAX_TOKEN_CHARACTERS = 16 * 2**10
# What a field of a request's head may have, its name included: the longest token, and room for `Authorization: Bearer`.
MAX_FIELD_BYTES = MAX_TOKEN_CHARACTERS + 64


def bearer_token(value: bytes | None) -> str:
    """Return the token of exactly one `Bearer <token>`: the scheme in any case, then exactly one space.

    Of several headers the value is a list, as HTTP has it (RFC 9110, 5.3), and is refused as such.

    Raises:
        MissingToken: no header, a bare `Bearer`, or another scheme. RFC 6750 section 3.1 counts an unsupported method
            as no authentication; a tab in place of the space makes another scheme.
        TokenRefused: several headers, several words, a list, too long, or beyond ASCII.
    """
    scheme, _, token = (value or b"").partition(b" ")
    if not token or scheme.lower() != b"bearer":
        raise MissingToken("No bearer token came with the call. Send it as: Authorization: Bearer TOKEN")
    if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii() or b" " in token or b"," in token:
        raise TokenRefused("header")
    return token.decode()
