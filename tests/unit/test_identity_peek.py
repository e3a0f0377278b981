"""What a token says of its own making, before anything of it is believed."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.peek import MAX_PART_BYTES, Peeked, peek
from gateway.identity.refused import TokenRefused
from tests.identity_provider import any_json, b64


def part(value: object) -> str:
    return b64(json.dumps(value).encode())


JWS = part({"alg": "RS256", "kid": "k"})
TWICE = b'{"alg":"RS256","iss":"i","sub":"a","sub":"b"}'
JWE = part({"alg": "dir", "enc": "A256GCM"})


def seen(token: str) -> object:
    try:
        read = peek(token)
    except TokenRefused as refused:
        return refused.reason
    return (read.algorithm, read.key_id, read.issuer) if isinstance(read, Peeked) else read


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (f"{JWS}.{part({'iss': 'i'})}.sig", ("RS256", "k", "i")),
        (f"{part({'alg': 'none'})}.{part({'iss': ''})}.sig", ("none", None, "")),
        (f"{JWE}.key.nonce.text.tag", "encrypted"),
        (f"{JWE}..nonce.text.tag", "encrypted"),
        (f"{JWE}.{part({'iss': 'i'})}.sig", "malformed"),
        (f"{JWE}.key.nonce.text.tag.more", "malformed"),
        (f"{JWE}.key.nonce..tag", "malformed"),
        (f"{JWE}.key.nonce.te/xt.tag", "malformed"),
        (f"{JWS}.key.nonce.text.tag", "malformed"),
        (f"{JWS}.{part({'iss': 'i'})}.", "malformed"),
        (f"{JWS}.{part({'iss': 5})}.sig", "malformed"),
        (f"{JWS}.{part({})}.sig", "malformed"),
        (f"{JWS}.opaque.sig", "malformed"),
        (f"{JWS}.{b64(TWICE)}.sig", "malformed"),
        (f"{JWS}.{part({'iss': 'i', 'x': float('nan')})}.sig", "malformed"),
        (f"{JWS}.{part({'iss': 'i'})}.siG", "malformed"),
        (f"{b64(TWICE)}.{part({'iss': 'i'})}.sig", "opaque"),
        (JWS, "malformed"),
        (f"{part({'alg': 'RS256', 'b64': False})}.{part({'iss': 'i'})}.sig", "malformed"),
        (f"{part({'alg': 'RS256', 'crit': []})}.{part({'iss': 'i'})}.sig", "malformed"),
        ("opaque", "opaque"),
        ("ya29.a0Af-_+~/Z==", "opaque"),
        ("a.b.c", "opaque"),
        ("a.b.c.d.e", "opaque"),
        (f"{part([])}.b.c", "opaque"),
        ("", "malformed"),
        ("=", "malformed"),
        ("a=b", "malformed"),
        ("a!", "malformed"),
        ("a\x7f", "malformed"),
        ("x" * 10_900, "opaque"),
        ("x" * 10_930, "malformed"),
        (part({"alg": "RS256", "pad": "x" * MAX_PART_BYTES}) + f".{part({'iss': 'i'})}.sig", "malformed"),
        (f"{JWS}.{part({'iss': 'i', 'pad': 'x' * MAX_PART_BYTES})}.sig", "malformed"),
        (f"{b64(b'[' * 5000)}.b.c", "opaque"),
        (f"{b64(b'{' * 5000)}.b.c", "opaque"),
    ],
)
def test_a_token_is_told_by_its_header_and_must_be_whole(token: str, expected: object) -> None:
    assert seen(token) == expected


@given(
    st.text(string.printable, max_size=40)
    | st.lists(any_json, max_size=6).map(lambda values: ".".join(map(part, values)))
)
def test_any_text_has_a_form_or_is_malformed(token: str) -> None:
    found = seen(token)
    assert isinstance(found, tuple) or found in {"encrypted", "opaque", "malformed"}
