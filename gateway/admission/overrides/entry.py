"""What is kept in the store, judged by this gateway's config: an override that can hold, or why it is left out."""

from functools import partial

from gateway import config
from gateway.admission.overrides.override import FIGURES, Override, read
from gateway.admission.settings.entry import Entry, judged
from gateway.admission.settings.members import shown
from gateway.errors import InvalidValue


def judge(name: str, value: bytes, limits: config.Limits) -> Entry[Override]:
    """Return the entry that is kept so."""
    return judged(name, value, read=read, check=partial(check, limits=limits))


def check(override: Override, limits: config.Limits) -> None:
    """Hold an override against the config.

    Raises:
        InvalidValue: it names a plan or a rule that there is not, or a figure that the rule does not limit.
    """
    if override.rule is None:
        if override.plan not in limits.plans:
            plans = ", ".join(limits.plans)
            raise InvalidValue(f"There is no plan {shown(override.plan)}; there are {plans}.", param="plan")
        return
    rules = [rule for plan in limits.plans.values() for rule in plan]
    named = [rule for rule in rules if rule.name == override.rule]
    if not named:
        names = ", ".join(dict.fromkeys(rule.name for rule in rules)) or "none"
        raise InvalidValue(f"No plan has a rule {shown(override.rule)}; there are {names}.", param="rule")
    measures = [figure for figure in FIGURES if any(getattr(rule, figure) is not None for rule in named)]
    for figure in FIGURES:
        if getattr(override.change, figure) is not None and figure not in measures:
            raise InvalidValue(f"Rule {override.rule} limits {' or '.join(measures)}, not {figure}.", param=figure)
