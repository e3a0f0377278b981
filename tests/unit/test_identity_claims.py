"""Verified claims -> Principal."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.identity.claims import MAX_NAME_CHARACTERS, ClaimMapping
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused
from tests.identity_provider import any_json

PASSPORT = ClaimMapping(config.Claims(key="sub", tenant="org_id || org_ids[0] || sub"))


def refused(claims: dict[str, Any], mapping: ClaimMapping = PASSPORT) -> bool:
    try:
        mapping.principal(claims)
    except TokenRefused as error:
        return error.reason == "principal" and error.code == "invalid_token"
    return False


def test_a_passport_names_its_tenant_by_the_first_claim_there_is() -> None:
    assert PASSPORT.principal({"sub": "s", "org_id": "o", "org_ids": ["a"]}) == Principal("o", "s")
    assert PASSPORT.principal({"sub": "s", "org_ids": ["a", "b"]}) == Principal("a", "s")
    assert PASSPORT.principal({"sub": "s", "org_id": "", "org_ids": []}) == Principal("s", "s")


@pytest.mark.parametrize("value", [None, "", 7, 1.5, True, False, [], ["s"], {"s": 1}])
def test_a_tenant_or_key_that_is_no_name_is_refused(value: object) -> None:
    mapping = ClaimMapping(config.Claims(key="k", tenant="t"))
    assert refused({"t": value, "k": "key"}, mapping)
    assert refused({"t": "tenant", "k": value}, mapping)
    assert refused({"t": "tenant"}, mapping)


@pytest.mark.parametrize(
    "name", ["a\0b", "a\nb", "a\rb", "\x7f", "\ud800", "a\u2028b", "\u202egpj", "x" * 257, "x" * 10**4]
)
def test_a_name_that_is_unsafe_in_keys_labels_and_logs_is_refused(name: str) -> None:
    assert refused({"sub": name})
    assert refused({"sub": "s", "plan": name})
    assert refused({"sub": "s", "models": [name]})


@pytest.mark.parametrize(
    "name", ["x", "a b", "{tag}:*", 'q"\\', "auth0|62", "josé@exämple.com", "名前", "x" * MAX_NAME_CHARACTERS]
)
def test_any_printable_name_is_kept_as_it_is(name: str) -> None:
    assert PASSPORT.principal({"sub": name}) == Principal(name, name)


def test_a_plan_is_a_name_or_none() -> None:
    assert PASSPORT.principal({"sub": "s", "plan": "gold"}).plan == "gold"
    assert PASSPORT.principal({"sub": "s", "plan": None}).plan is None
    assert PASSPORT.principal({"sub": "s", "plan": ""}).plan is None


@pytest.mark.parametrize("value", [0, False, 1, [], ["gold"], {}])
def test_a_plan_that_is_no_name_is_refused(value: object) -> None:
    assert refused({"sub": "s", "plan": value})


def test_models_are_all_none_or_those_listed() -> None:
    assert PASSPORT.principal({"sub": "s"}).models is None
    assert PASSPORT.principal({"sub": "s", "models": None}).models is None
    assert PASSPORT.principal({"sub": "s", "models": []}).models == ()
    assert PASSPORT.principal({"sub": "s", "models": ["a", "b/*"]}).models == ("a", "b/*")


@pytest.mark.parametrize("value", ["a", "", 0, False, {}, {"a": 1}, [1], [None], ["a", ["b"]], [""]])
def test_models_that_are_no_list_of_names_are_refused(value: object) -> None:
    assert refused({"sub": "s", "models": value})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("join('-', a)", None),
        ("ceil(a)", math.nan),
        ("ceil(a)", math.inf),
        ("sum(a)", [10**400, 0.5]),
        ("contains('text', a)", 5),
    ],
)
def test_an_expression_that_fails_on_these_claims_is_a_refusal(expression: str, value: object) -> None:
    assert refused({"sub": "s", "a": value}, ClaimMapping(config.Claims(key="sub", tenant=expression)))


@given(
    st.dictionaries(st.sampled_from(["sub", "org_id", "org_ids", "plan", "models", "a"]), any_json),
    st.sampled_from(
        ["sub", "to_string(@)", "sort(org_ids)[0]", "length(sub)", "a.b[*].c | [0]", "max_by(a, &b)", "to_number(sub)"]
    ),
)
def test_any_claims_give_a_safe_principal_or_a_refusal(claims: dict[str, Any], tenant: str) -> None:
    try:
        principal = ClaimMapping(config.Claims(key="sub", tenant=tenant)).principal(claims)
    except TokenRefused:
        return
    for name in (principal.tenant, principal.key, principal.plan or "-", *(principal.models or ())):
        assert name.isprintable()
        assert 0 < len(name) <= MAX_NAME_CHARACTERS


@pytest.mark.parametrize("value", [None, "", 7, True, ["j"], "x" * 257])
def test_an_id_of_the_token_that_cannot_be_named_is_none(value: object) -> None:
    assert PASSPORT.principal({"sub": "s", "jti": "j"}).token_id == "j"
    assert PASSPORT.principal({"sub": "s", "jti": value}).token_id is None


def test_two_tokens_of_a_credential_are_one_principal() -> None:
    assert PASSPORT.principal({"sub": "s", "jti": "a"}) == PASSPORT.principal({"sub": "s", "jti": "b"})
