"""Authorization header values -> the one token, or a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import MissingToken, Unauthorized
from gateway.identity.header import MAX_TOKEN_CHARACTERS, bearer_token
from gateway.identity.refused import TokenRefused, reason_of


def _as_aiohttp(raw: bytes) -> str:
    """Return header bytes as aiohttp hands them over."""
    return "Bearer " + raw.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_scheme_is_read_in_any_case(scheme: str) -> None:
    assert bearer_token([f"{scheme} a.b-c_d.e"]) == "a.b-c_d.e"


@pytest.mark.parametrize(
    "values", [[], [""], ["Bearer"], ["Bearer "], ["Basic dXNlcjpwYXNz"], ["Token a.b.c"], ["Bearer\ta.b.c"], ["a.b.c"]]
)
def test_no_bearer_token_is_a_missing_token_with_a_plain_challenge(values: list[str]) -> None:
    with pytest.raises(MissingToken) as refused:
        bearer_token(values)
    assert refused.value.headers == {"WWW-Authenticate": "Bearer"}
    assert reason_of(refused.value) == "missing_token"


@pytest.mark.parametrize(
    "value",
    [
        "Bearer  a.b.c",
        "Bearer a.b.c ",
        "Bearer a.b.c d.e.f",
        "Bearer a.b.c, Bearer d.e.f",
        "Bearer a.b.c,d.e.f",
        "Bearer \xe9.b.c",
        "Bearer \udcff\udcfe",
        "Bearer " + "a" * (MAX_TOKEN_CHARACTERS + 1),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(value: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        bearer_token([value])
    assert refused.value.code == "invalid_token"
    assert refused.value.reason == "header"


@pytest.mark.parametrize(
    "values", [["Bearer a.b.c", "Bearer d.e.f"], ["Bearer a.b.c"] * 2, ["Basic x", "Bearer a.b.c"]]
)
def test_of_several_headers_none_is_chosen(values: list[str]) -> None:
    with pytest.raises(TokenRefused):
        bearer_token(values)


def test_a_token_of_the_documented_size_is_read() -> None:
    assert len(bearer_token(["Bearer " + "a" * MAX_TOKEN_CHARACTERS])) == MAX_TOKEN_CHARACTERS


@given(st.lists(st.one_of(st.text(), st.text().map("Bearer {}".format), st.binary().map(_as_aiohttp)), max_size=3))
def test_any_header_gives_a_token_or_a_refusal(values: list[str]) -> None:
    try:
        token = bearer_token(values)
    except Unauthorized:
        return
    assert [value[7:] for value in values] == [token]
    assert token.isascii()
