from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.tenants import TenantLabels


def test_the_first_tenants_keep_their_names_and_later_ones_are_other() -> None:
    tenants = TenantLabels([], max_tenants=2)
    assert [tenants.label(name) for name in ("a", "b", "a", "c", "b")] == ["a", "b", "a", "other", "b"]


def test_configured_tenants_come_first_however_late_they_call() -> None:
    tenants = TenantLabels(["acme"], max_tenants=2)
    assert [tenants.label(name) for name in ("a", "b", "acme")] == ["a", "other", "acme"]


def test_more_configured_tenants_than_the_bound_are_all_kept_and_nobody_else() -> None:
    tenants = TenantLabels(["a", "b"], max_tenants=1)
    assert [tenants.label(name) for name in ("c", "a", "b")] == ["other", "a", "b"]


def test_a_bound_of_0_names_nobody() -> None:
    tenants = TenantLabels(["acme"], max_tenants=0)
    assert [tenants.label(name) for name in ("acme", "a")] == ["other", "other"]


def test_nobody_authenticated_is_unknown_and_takes_no_place() -> None:
    tenants = TenantLabels([], max_tenants=1)
    assert [tenants.label(name) for name in (None, "a")] == ["unknown", "a"]


def test_names_that_are_too_long_or_unprintable_are_other_and_take_no_place() -> None:
    tenants = TenantLabels(["two\nlines"], max_tenants=1)
    assert [tenants.label(name) for name in ("x" * 201, "\ud800", "two\nlines")] == ["other"] * 3
    assert tenants.label("x" * 200) == "x" * 200


@given(st.lists(st.text(st.characters(), max_size=8)), st.integers(0, 5))
def test_labels_are_few_and_can_always_be_encoded(names: list[str], most: int) -> None:
    tenants = TenantLabels([], max_tenants=most)
    labels = {tenants.label(name) for name in names}
    assert len(labels - {"other"}) <= most
    for label in labels:
        label.encode()


def test_a_tenant_that_leaves_the_config_keeps_its_label_while_there_is_room() -> None:
    tenants = TenantLabels(["acme", "zeta"], max_tenants=2)
    assert tenants.configure(["zeta"], max_tenants=2) == set()
    assert [tenants.label(name) for name in ("acme", "zeta", "a")] == ["acme", "zeta", "other"]
    assert tenants.configure(["zeta", "new"], max_tenants=2) == {"acme"}
    assert [tenants.label(name) for name in ("acme", "zeta", "new")] == ["other", "zeta", "new"]
    assert tenants.configure(["zeta"], max_tenants=0) == {"zeta", "new"}
    assert tenants.label("zeta") == "other"
