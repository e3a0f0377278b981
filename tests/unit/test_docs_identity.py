"""docs/identity.md's configurations for known providers, each tried on the tokens that the provider issues."""

from typing import Any

import pytest
import yaml

from gateway import config
from gateway.config import file
from gateway.errors import Unauthorized
from gateway.identity.claims import ClaimMapping
from gateway.identity.keys import Keys
from gateway.identity.peek import Peeked, peek
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from gateway.identity.verify import check, verify
from tests.documents import block_in, rows, section
from tests.identity_provider import key_set, signing_key

NOW = 1_800_000_000.0
REST = {"models": {"m": {"pool": "p"}}, "pools": {"p": {"replicas": ["http://127.0.0.1:8000"]}}}


def documented(title: str, block: int = 0) -> config.Issuer:
    text = section("identity", title).split("```yaml")[block + 1]
    tree = yaml.safe_load(block_in("```yaml" + text, "")) | REST
    (issuer,) = file.parse(yaml.safe_dump(tree), environment={"KEYCLOAK_SECRET": "s"}).auth.issuers
    return issuer


def outcome(issuer: config.Issuer, claims: dict[str, Any]) -> Principal | str:
    """Return who a genuine token of these claims is, or why it is refused."""
    key = signing_key("k1", issuer.algorithms[0])
    found = Keys.parse(key_set(key)).find("k1", key.algorithm)
    assert found is not None
    token = peek(key.token({"iss": issuer.issuer, "exp": NOW + 60, **claims}))
    assert isinstance(token, Peeked)
    try:
        return ClaimMapping(issuer.claims).principal(verify(token, found, issuer=issuer, now=NOW).claims)
    except Unauthorized as error:
        return reason_of(error)


UNIKORN = {"typ": "passport", "sub": "sa-1", "acctype": "service", "aud": ["https://inference.example.com"]}
KEYCLOAK = {"typ": "Bearer", "aud": ["inference", "account"], "azp": "batch", "sub": "f1e2", "scope": "profile"}
AUTH0 = {"aud": "https://inference.example.com", "azp": "App1", "sub": "App1@clients", "gty": "client-credentials"}
AUTH0_9068 = {"aud": ["https://inference.example.com"], "client_id": "App1", "sub": "auth0|1", "jti": "j"}
ENTRA = {"aud": "66666666-7777-8888-9999-000000000000", "ver": "2.0", "azp": "app", "oid": "o", "tid": "t", "sub": "s"}
KUBERNETES = {
    "aud": ["inference"],
    "sub": "system:serviceaccount:team-a:batch",
    "kubernetes.io": {"namespace": "team-a", "serviceaccount": {"name": "batch", "uid": "u"}},
}


@pytest.mark.parametrize(
    ("title", "claims", "expected"),
    [
        ("Unikorn", UNIKORN | {"org_ids": ["o1"]}, Principal("o1", "service:sa-1")),
        ("Unikorn", UNIKORN | {"org_ids": ["o1", "o2"]}, Principal("sa-1", "service:sa-1")),
        ("Unikorn", UNIKORN | {"org_ids": ["o1", "o2"], "org_id": "o2"}, Principal("o2", "service:sa-1")),
        ("Unikorn", UNIKORN | {"typ": None}, "required_claim"),
        ("Unikorn", UNIKORN | {"aud": []}, "audience"),
        ("Keycloak", KEYCLOAK, Principal("batch", "batch")),
        ("Keycloak", KEYCLOAK | {"typ": "ID", "aud": "inference"}, "required_claim"),
        ("Keycloak", KEYCLOAK | {"aud": "account"}, "audience"),
        ("Auth0", AUTH0, Principal("App1", "App1")),
        (
            "Auth0",
            AUTH0 | {"org_id": "org_1", "sub": "auth0|1", "https://inference.example.com/plan": "gold"},
            Principal("org_1", "App1", plan="gold"),
        ),
        ("Auth0", AUTH0_9068, Principal("App1", "App1")),
        ("Auth0", AUTH0 | {"aud": "App1", "sub": "auth0|1"}, "audience"),
        ("Entra ID", ENTRA, Principal("t", "app:o")),
        ("Entra ID", ENTRA | {"ver": "1.0"}, "required_claim"),
        ("Entra ID", ENTRA | {"aud": "app"}, "audience"),
        ("Kubernetes service accounts", KUBERNETES, Principal("team-a", "system:serviceaccount:team-a:batch")),
        ("Kubernetes service accounts", KUBERNETES | {"aud": ["https://kubernetes.default.svc"]}, "audience"),
    ],
)
def test_a_documented_configuration_reads_its_providers_tokens(
    title: str, claims: dict[str, Any], expected: Principal | str
) -> None:
    assert outcome(documented(title), claims) == expected


def test_keycloak_may_be_asked_instead() -> None:
    issuer = documented("Keycloak", 1)
    answer = {"active": True, "client_id": "batch", "sub": "f1e2", "exp": NOW + 60, "aud": "inference", "typ": "Bearer"}
    claims = check(answer, issuer=issuer, now=NOW).claims
    with pytest.raises(Unauthorized):
        check(answer | {"typ": "ID"}, issuer=issuer, now=NOW)
    assert issuer.introspection is not None
    assert issuer.introspection.client_id == issuer.audience == answer["aud"]
    assert ClaimMapping(issuer.claims).principal(claims) == Principal("batch", "batch")
    assert issuer.introspection is not None
    assert issuer.introspection.url.startswith(issuer.issuer)


def test_each_rule_for_users_of_several_organizations_does_what_its_row_says() -> None:
    told = rows(section("identity", "Users of several organizations"))
    words = {"that one": "o1", "the first in the list": "o1", "the user's own tenant": "user", "401": "principal"}
    assert len(told) == 4
    for rule, *outcomes in told[1:]:
        mapping = ClaimMapping(config.Claims(tenant=rule.strip("`")))
        for organizations, expected in zip((["o1"], ["o1", "o2"], []), outcomes, strict=True):
            assert tenant(mapping, {"sub": "user", "org_ids": organizations}) == words[expected]
        assert tenant(mapping, {"sub": "user", "org_ids": ["o1", "o2"], "org_id": "o2"}) == "o2"


def tenant(mapping: ClaimMapping, claims: dict[str, Any]) -> str:
    try:
        return mapping.principal(claims).tenant
    except Unauthorized as error:
        return reason_of(error)
