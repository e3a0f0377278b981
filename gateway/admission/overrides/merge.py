"""Overrides laid over the config: of the same tenant or key the override wins; a key's entry wins over its tenant's.

So a figure or plan is the first that there is of: override of the key, the key's entry in the config, override of the
tenant, the tenant's entry in the config, the plan (for a plan: the token's claim, the default).
"""

from collections.abc import Iterable
from typing import Literal

from gateway import config
from gateway.admission.overrides.override import Override

Source = Literal["key_override", "key_config", "tenant_override", "tenant_config", "plan"]


def merged(entry: config.TenantEntry, overrides: Iterable[Override]) -> config.TenantEntry:
    """Return what holds for a tenant: `entry`, the config's, changed by all `overrides` that it has."""
    own: list[Override] = []
    by_key: dict[str, list[Override]] = {}
    for override in overrides:
        (own if override.key is None else by_key.setdefault(override.key, [])).append(override)
    keys = dict(entry.keys)
    for key, its in by_key.items():
        before = keys.get(key, config.KeyEntry())
        keys[key] = before.model_copy(update=_changed(before, its))
    return entry.model_copy(update={**_changed(entry, own), "keys": keys})


def source(entry: config.TenantEntry, overrides: Iterable[Override], *, key: str, rule: str, figure: str) -> Source:
    """Return where the figure of a rule comes from. `entry` is the tenant's in the config, `overrides` are its own."""
    runtime = {(one.key is not None, one.rule): one.change for one in overrides if one.key in {None, key}}
    configured = entry.keys.get(key, config.KeyEntry())
    places: list[tuple[Source, config.RuleOverride | None]] = [
        ("key_override", runtime.get((True, rule))),
        ("key_config", configured.override.get(rule)),
        ("tenant_override", runtime.get((False, rule))),
        ("tenant_config", entry.override.get(rule)),
    ]
    return next((word for word, change in places if getattr(change, figure, None) is not None), "plan")


def _changed(entry: config.KeyEntry | config.TenantEntry, overrides: list[Override]) -> dict[str, object]:
    plan, rules = entry.plan, dict(entry.override)
    for override in overrides:
        if override.rule is None:
            plan = override.plan
        else:
            before = rules.get(override.rule)
            change = override.change
            rules[override.rule] = change if before is None else before.model_copy(update=override.members)
    return {"plan": plan, "override": rules}
