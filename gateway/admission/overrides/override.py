"""One override as a value, and as the store keeps it: a name that says whose and of what, and JSON that says the rest.

    rule tenant-month acme            {"tokens": 100000000, "set_at": "2026-11-30T09:00:00Z"}
    rule key-requests acme batch      {"requests": 6000, "set_at": …, "until": "2026-11-30T11:00:00Z"}
    plan acme                         {"plan": "large", "set_at": …}

One entry for one thing, so that two operators who change different things never undo each other.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gateway import config
from gateway.admission.ledger.account import decoded, encoded
from gateway.admission.limit import MAX_COUNT
from gateway.admission.settings.members import kept_members, name_in, only, shown, times, times_in
from gateway.errors import InvalidValue

# The measures of a rule, as the config calls them.
Figure = Literal["requests", "tokens", "concurrent"]
FIGURES: tuple[Figure, ...] = get_args(Figure)


@dataclass(frozen=True, slots=True)
class Override:
    """What holds for a tenant, or for one of its keys, in place of the config: `rule` changed, or a plan.

    `until` and `set_at` are whole seconds since the epoch; without `until` it holds until it is removed.
    """

    tenant: str
    key: str | None
    rule: str | None
    plan: str | None
    change: config.RuleOverride
    set_at: int
    until: int | None

    @property
    def name(self) -> str:
        """The name under which it is kept."""
        return place(self.tenant, self.key, self.rule)

    @property
    def members(self) -> dict[str, Any]:
        """What it changes: the plan, or the rule's figure and shadow."""
        return self.change.model_dump(exclude_none=True) if self.plan is None else {"plan": self.plan}

    def value(self) -> bytes:
        """Return what is kept under the name."""
        return json.dumps(self.members | times(self.set_at, self.until)).encode()


def place(tenant: str, key: str | None, rule: str | None) -> str:
    """Return the name of an override of `rule`, or of the plan where it is None, for a tenant or one of its keys."""
    words = ["plan"] if rule is None else ["rule", encoded(rule)]
    return " ".join([*words, encoded(tenant), *([] if key is None else [encoded(key)])])


def read(name: str, value: bytes) -> Override:
    """Return the override that is kept so.

    Raises:
        InvalidValue: it is none, or one of another version of the gateway.
    """
    tenant, key, rule = _placed(name)
    members = kept_members(value)
    set_at, until = times_in(members)
    if rule is None:
        plan, change = plan_in(members), config.RuleOverride()
    else:
        plan, change = None, change_in(members)
    return Override(tenant, key, rule, plan, change, set_at, until)


def plan_in(members: Mapping[str, object]) -> str:
    """Return the plan that `members` name, and nothing else.

    Raises:
        InvalidValue: they do not.
    """
    only(members, ("plan",))
    return name_in(members, "plan")


def change_in(members: Mapping[str, object]) -> config.RuleOverride:
    """Return the figure or the shadow that `members` give a rule.

    Raises:
        InvalidValue: they give it none, two figures, or anything else.
    """
    only(members, (*FIGURES, "shadow"))
    given = [figure for figure in FIGURES if figure in members]
    if not members:
        raise InvalidValue(f"Nothing is changed: expected one of {', '.join(FIGURES)}, or shadow, or both.")
    if len(given) > 1:
        raise InvalidValue(f"A rule limits one of {', '.join(FIGURES)}; got {' and '.join(given)}.", param=given[1])
    for name in given:
        figure = members[name]
        if type(figure) is not int or not 0 <= figure <= MAX_COUNT:
            raise InvalidValue(f"{name} must be an integer from 0 to {MAX_COUNT}, not {shown(figure)}.", param=name)
    if not isinstance(members.get("shadow", True), bool):
        raise InvalidValue(f"shadow must be true or false, not {shown(members['shadow'])}.", param="shadow")
    return config.RuleOverride.model_validate(dict(members))


def _placed(name: str) -> tuple[str, str | None, str | None]:
    """Return tenant, key and rule of the place that is called so."""
    kind, *words = name.split(" ")
    with suppress(UnicodeDecodeError):
        names = [decoded(word) for word in words]
        rule = names.pop(0) if kind == "rule" and names else None
        tenant, key = [*names, None, None][:2]
        if tenant and place(tenant, key, rule) == name:
            return tenant, key, rule
    raise InvalidValue("Its name is not one of an override.")
