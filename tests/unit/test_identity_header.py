"""Authorization header values -> the one token, or a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import MissingToken, Unauthorized
from gateway.identity.header import MAX_TOKEN_CHARACTERS, bearer_token
from gateway.identity.refused import TokenRefused, reason_of


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_scheme_is_read_in_any_case(scheme: str) -> None:
    assert bearer_token(f"{scheme} a.b-c_d.e".encode()) == "a.b-c_d.e"


@pytest.mark.parametrize(
    "value", [None, b"", b"Bearer", b"Bearer ", b"Basic dXNlcjpwYXNz", b"Token a.b.c", b"Bearer\ta.b.c", b"a.b.c"]
)
def test_no_bearer_token_is_a_missing_token_with_a_plain_challenge(value: bytes | None) -> None:
    with pytest.raises(MissingToken) as refused:
        bearer_token(value)
    assert refused.value.headers == {"WWW-Authenticate": "Bearer"}
    assert reason_of(refused.value) == "missing_token"


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer  a.b.c",
        b"Bearer a.b.c ",
        b"Bearer a.b.c d.e.f",
        b"Bearer a.b.c, Bearer d.e.f",
        b"Bearer a.b.c,d.e.f",
        "Bearer \xe9.b.c".encode(),
        b"Bearer \xff\xfe",
        b"Bearer " + b"a" * (MAX_TOKEN_CHARACTERS + 1),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(value: bytes) -> None:
    with pytest.raises(TokenRefused) as refused:
        bearer_token(value)
    assert refused.value.code == "invalid_token"
    assert refused.value.reason == "header"


def test_a_token_of_the_documented_size_is_read() -> None:
    assert len(bearer_token(b"Bearer " + b"a" * MAX_TOKEN_CHARACTERS)) == MAX_TOKEN_CHARACTERS


@given(st.one_of(st.binary(), st.binary().map(b"Bearer ".__add__)))
def test_any_header_gives_a_token_or_a_refusal(value: bytes) -> None:
    try:
        token = bearer_token(value)
    except Unauthorized:
        return
    assert value[7:] == token.encode("ascii")
