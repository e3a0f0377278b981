"""What an operator asks for, as members by name: an override in, or the refusal that says which member is wrong."""

import math
from collections.abc import Mapping

from gateway import config
from gateway.admission.overrides.override import Override, change_in, place, plan_in
from gateway.admission.settings.members import end_in, name_in, only


def rule_asked(members: Mapping[str, object], *, now_s: float) -> Override:
    """Return the override of a rule: `tenant`, perhaps `key`, `rule`, what changes, perhaps `for` how long.

    Raises:
        InvalidValue: a member is wrong; `param` is its name.
    """
    tenant, key, until, rest = _common(members, now_s)
    rule = name_in(rest, "rule")
    del rest["rule"]
    return Override(tenant, key, rule, None, change_in(rest), math.ceil(now_s), until)


def plan_asked(members: Mapping[str, object], *, now_s: float) -> Override:
    """Return the override of a plan: `tenant`, perhaps `key`, `plan`, perhaps `for` how long.

    Raises:
        InvalidValue: as `rule_asked`.
    """
    tenant, key, until, rest = _common(members, now_s)
    return Override(tenant, key, None, plan_in(rest), config.RuleOverride(), math.ceil(now_s), until)


def place_asked(members: Mapping[str, object], *, of_rule: bool) -> str:
    """Return the name of the override that is meant: of a `rule`, or of the plan, for `tenant` and perhaps `key`.

    Raises:
        InvalidValue: as `rule_asked`.
    """
    known = ("tenant", "key", "rule") if of_rule else ("tenant", "key")
    only(members, known)
    key = name_in(members, "key") if "key" in members else None
    return place(name_in(members, "tenant"), key, name_in(members, "rule") if of_rule else None)


def _common(members: Mapping[str, object], now_s: float) -> tuple[str, str | None, int | None, dict[str, object]]:
    """Return the tenant, the key, the end, and the other members."""
    rest = {name: value for name, value in members.items() if name not in {"tenant", "key", "for"}}
    key = name_in(members, "key") if "key" in members else None
    return name_in(members, "tenant"), key, end_in(members, now_s=now_s), rest
