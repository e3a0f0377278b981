"""What overrides make of the config's entries: which figure wins, and where it is said to come from."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.admission.overrides.merge import Source, merged, source
from gateway.admission.overrides.override import Override
from gateway.admission.rules import Rulebook
from gateway.identity.principal import Principal

NO_CHANGE = config.RuleOverride()
RULE = {"name": "few", "per": ["key"], "requests": 10, "window": "1m"}


def of_rule(key: str | None, *, tenant: str = "acme", rule: str = "few", **change: Any) -> Override:
    return Override(tenant, key, rule, None, config.RuleOverride(**change), 0, None)


def of_plan(key: str | None, plan: str) -> Override:
    return Override("acme", key, None, plan, NO_CHANGE, 0, None)


def limits(**entry: Any) -> config.Limits:
    plans = {"standard": [RULE], "large": [{**RULE, "requests": 100}], "huge": [{**RULE, "requests": 1000}]}
    return config.Limits.model_validate({"plans": plans, "tenants": {"acme": entry}})


# From the one that wins to the one that all others beat; each with the figure that it gives.
ORDER: Mapping[Source, int] = {"key_override": 1, "key_config": 2, "tenant_override": 3, "tenant_config": 4, "plan": 10}


@given(st.sets(st.sampled_from(list(ORDER))))
def test_a_figure_is_the_keys_override_else_its_entry_else_the_tenants_override_else_its_entry(
    there: set[Source],
) -> None:
    entry: dict[str, Any] = {}
    if "tenant_config" in there:
        entry["override"] = {"few": {"requests": 4}}
    if "key_config" in there:
        entry["keys"] = {"key-1": {"override": {"few": {"requests": 2}}}}
    at_runtime = [of_rule(None, requests=3)] if "tenant_override" in there else []
    at_runtime += [of_rule("key-1", requests=1)] if "key_override" in there else []
    configured = limits(**entry)
    book = Rulebook(configured)
    book.replace({"acme": merged(configured.tenants["acme"], at_runtime)})

    found = book.applying(Principal("acme", "key-1"), model="m", pool="p").limits[0].limit
    (expected, figure) = next((word, figure) for word, figure in ORDER.items() if word in there | {"plan"})
    assert found == figure
    assert source(configured.tenants["acme"], at_runtime, key="key-1", rule="few", figure="requests") == expected


def test_a_plan_is_the_keys_override_else_its_entry_else_the_tenants_override_else_its_entry_else_the_claim() -> None:
    configured = limits(plan="large", keys={"special": {"plan": "standard"}})

    def plan(key: str, *overrides: Override, claim: str | None = None) -> str:
        book = Rulebook(configured)
        book.replace({"acme": merged(configured.tenants["acme"], overrides)})
        return book.applying(Principal("acme", key, claim), model="m", pool="p").plan

    assert plan("other", claim="huge") == "large"
    assert plan("other", of_plan(None, "huge")) == "huge"
    assert plan("special", of_plan(None, "huge")) == "standard"
    assert plan("special", of_plan("special", "huge"), of_plan(None, "large")) == "huge"


def test_an_override_changes_what_it_names_and_leaves_the_rest_of_the_same_entry() -> None:
    configured = config.TenantEntry(
        plan="large",
        override={"few": config.RuleOverride(requests=5, shadow=True), "other": config.RuleOverride(tokens=7)},
    )
    changed = merged(configured, [of_rule(None, requests=6), of_rule("key-1", shadow=False)])
    assert changed.plan == "large"
    assert changed.override == {
        "few": config.RuleOverride(requests=6, shadow=True),
        "other": config.RuleOverride(tokens=7),
    }
    assert changed.keys == {"key-1": config.KeyEntry(override={"few": config.RuleOverride(shadow=False)})}


def test_without_overrides_the_config_holds() -> None:
    entry = limits(plan="large", keys={"key-1": {"override": {"few": {"requests": 2}}}}).tenants["acme"]
    assert merged(entry, []) == entry
