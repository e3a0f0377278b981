"""Several lists of permitted models: each must permit."""

from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.identity.permissions import Permissions
from gateway.identity.principal import Principal

TENANTS = {
    "acme": {"models": ["a*"], "keys": {"k": {"models": ["*b"]}, "none": {"models": []}, "all": {}}},
    "free": {"keys": {"k": {"models": ["a"]}}},
}
PERMISSIONS = Permissions(config.Auth.model_validate({"development_key": "k.pem", "tenants": TENANTS}).tenants)


def may(tenant: str, key: str, model: str, *models: str) -> bool:
    return PERMISSIONS.narrowed(Principal(tenant, key, models=models or None)).may_use(model)


def test_tenant_key_and_token_must_all_permit() -> None:
    assert may("acme", "k", "ab")
    assert not may("acme", "k", "a")
    assert not may("acme", "k", "b")
    assert may("acme", "all", "a")
    assert may("acme", "unnamed", "a")
    assert not may("acme", "none", "a")
    assert not may("acme", "unnamed", "a", "b")
    assert may("free", "k", "a")
    assert not may("free", "k", "ab")
    assert may("free", "other", "x")
    assert may("unnamed", "k", "x")
    assert not may("unnamed", "k", "x", "y")


NAMES = st.sampled_from(["a", "a/b", "b", "ab"])
LISTS = st.lists(st.sampled_from(["a", "b", "a*", "*b", "*", "[a]", ""]), max_size=3).map(tuple)


@given(NAMES, st.none() | LISTS, st.lists(LISTS, max_size=2).map(tuple))
def test_more_lists_never_permit_more(
    model: str, models: tuple[str, ...] | None, within: tuple[tuple[str, ...], ...]
) -> None:
    alone = [Principal("t", "k", models=models).may_use(model)]
    alone += [Principal("t", "k", models=one).may_use(model) for one in within]
    assert Principal("t", "k", models=models, within=within).may_use(model) == all(alone)
