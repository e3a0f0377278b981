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
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from gateway import config
from gateway.admission.ledger.account import decoded, encoded
from gateway.admission.limit import MAX_COUNT
from gateway.calls import strict_json
from gateway.errors import InvalidJson, InvalidValue
from gateway.identity.claims import MAX_NAME_CHARACTERS

# The measures of a rule, as the config calls them.
Figure = Literal["requests", "tokens", "concurrent"]
FIGURES: tuple[Figure, ...] = get_args(Figure)

_MAX_SHOWN = 60


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
        times = {"set_at": iso(self.set_at)} | ({} if self.until is None else {"until": iso(self.until)})
        return json.dumps(self.members | times).encode()


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
    try:
        members = strict_json.loads(value, max_depth=4).value
    except InvalidJson as error:
        raise InvalidValue(error.message) from error
    if not isinstance(members, dict):
        raise InvalidValue("It is not a JSON object.")
    times = {time: _seconds(time, members.pop(time)) for time in ("set_at", "until") if time in members}
    if "set_at" not in times:
        raise InvalidValue("set_at is not there.")
    if rule is None:
        plan, change = plan_in(members), config.RuleOverride()
    else:
        plan, change = None, change_in(members)
    return Override(tenant, key, rule, plan, change, times["set_at"], times.get("until"))


def plan_in(members: Mapping[str, object]) -> str:
    """Return the plan that `members` name, and nothing else.

    Raises:
        InvalidValue: they do not.
    """
    _only(members, ("plan",))
    return name_in(members, "plan")


def change_in(members: Mapping[str, object]) -> config.RuleOverride:
    """Return the figure or the shadow that `members` give a rule.

    Raises:
        InvalidValue: they give it none, two figures, or anything else.
    """
    _only(members, (*FIGURES, "shadow"))
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


def name_in(members: Mapping[str, object], member: str) -> str:
    """Return the name that stands in `member`.

    Raises:
        InvalidValue: there is none.
    """
    name = members.get(member)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        expected = f"{member} must be a name of 1 to {MAX_NAME_CHARACTERS} characters"
        raise InvalidValue(f"{expected}, not {shown(name)}." if member in members else f"{expected}.", param=member)
    return name


def iso(seconds: int) -> str:
    """Return a time as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(value: object) -> str:
    """Return what somebody gave us in a few printable characters."""
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


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


def _only(members: Mapping[str, object], known: tuple[str, ...]) -> None:
    for member in members:
        if member not in known:
            raise InvalidValue(
                f"There is no {shown(member)} here; there are {', '.join(known)}.", param=member[:_MAX_SHOWN]
            )


def _seconds(member: str, text: object) -> int:
    with suppress(ValueError, OverflowError):
        seconds = round(datetime.fromisoformat(str(text)).timestamp())
        if iso(seconds) == text:  # in none of ISO 8601's other ways
            return seconds
    raise InvalidValue(f"{member} must be a time such as 2026-11-30T09:00:00Z, not {shown(text)}.", param=member)
