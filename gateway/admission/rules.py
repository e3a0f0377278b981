"""Which limits apply to a principal, and what a call reserves of each. Resolved once and remembered; no I/O."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway import config
from gateway.admission.digest import digest
from gateway.admission.ledger.account import EVERYBODYS, Account
from gateway.admission.limit import MAX_COUNT, UNITS, Kind, Limit, Measure
from gateway.admission.price import UNIT, Price
from gateway.calls.call import Call
from gateway.identity.principal import Principal

log = logging.getLogger(__name__)

# Distinct (tenant, key, plan, model) remembered: with what is worked out of their limits about 5 kB each (measured), so
# 50 MB at most, and thousands of keys stay cheap.
REMEMBERED = 10_000

# Limits that name neither tenant nor key are everybody's. No tenant's tag is this: those are 32 digits.
EVERYBODY = EVERYBODYS.tag

# How the config calls the kinds of token that a price has, in its order.
_KINDS_OF_PRICE = ("input", "output", "cached", "reasoning")


@dataclass(frozen=True, slots=True)
class Applying:
    """The limits of one principal and model.

    While the store is away calls are `denied`, or this process admits `shares` of the limits that are counted `alone`.
    `plan` is theirs, `priority` is that plan's, `rules` are their names; `shadows`: one of them is a shadow.
    `plan_unknown`: the token claimed a plan that does not exist.
    """

    account: Account
    plan: str
    limits: tuple[Limit, ...]
    alone: tuple[bool, ...]
    shares: tuple[Limit, ...]
    denied: bool
    rules: tuple[str, ...]
    shadows: bool
    plan_unknown: bool
    priority: config.Priority = "normal"


class Rulebook:
    """The plans, and what tenants and keys have beyond them: the config's entries, until others replace them."""

    def __init__(self, limits: config.Limits) -> None:
        self._limits = limits
        self._tenants: Mapping[str, config.TenantEntry] = limits.tenants
        self._resolved = lru_cache(maxsize=REMEMBERED)(self._resolve)
        self._resolved_beyond = lru_cache(maxsize=REMEMBERED)(self._resolve_beyond)

    def applying(self, principal: Principal, *, model: str, pool: str) -> Applying:
        """Return the limits that apply when `principal` calls `model` in `pool`."""
        return self._resolved(principal.tenant, principal.key, principal.plan, model, pool)

    def beyond(self, held: Applying, principal: Principal, *, model: str, pool: str) -> Applying:
        """Return what applies beyond what is `held`, when `principal` calls `model` in `pool`; never booked."""
        return self._resolved_beyond(held, (principal.tenant, principal.key, principal.plan, model, pool))

    def configure(self, limits: config.Limits) -> None:
        """Go by these limits from now on, without whatever had replaced the entries of the ones before."""
        self._limits = limits
        self.replace(limits.tenants)

    def replace(self, tenants: Mapping[str, config.TenantEntry]) -> None:
        """Let calls from now on have the entries in `tenants`. Those under way keep what they were admitted with."""
        self._tenants = tenants
        self._resolved.cache_clear()
        self._resolved_beyond.cache_clear()

    def _resolve_beyond(self, held: Applying, call: tuple[str, str, str | None, str, str]) -> Applying:
        found = self._resolve(*call, known=frozenset(limit.key for limit in held.limits))
        return replace(found, account=found.account.unbooked)

    def _resolve(
        self,
        tenant: str,
        key: str,
        claim: str | None,
        model: str,
        pool: str,
        *,
        known: frozenset[str] | None = None,
    ) -> Applying:
        """Return all that applies; or what does beyond the limits whose keys are `known`."""
        plan, unknown = self._plan(tenant, key, claim)
        account = Account(tenant, key, model, digest(tenant))
        names = {"key": key, "model": model, "pool": pool}
        found = [
            (rule, limit)
            for rule in self._overridden(self._limits.plans[plan], tenant, key)
            if not rule.models or any(fnmatchcase(model, pattern) for pattern in rule.models)
            if (limit := _limit(rule, account.tag, names)).key not in (known or ())
        ]
        rules, limits = [rule for rule, _ in found], tuple([limit for _, limit in found])
        words = [rule.on_store_failure or self._limits.on_store_failure for rule in rules]
        enforced = [word for rule, word in zip(rules, words, strict=True) if not rule.shadow]
        if known is None and not enforced:
            enforced = [self._limits.on_store_failure]
        processes = self._limits.processes
        return Applying(
            account,
            plan,
            limits,
            alone=tuple([word == "local" for word in words]),
            shares=tuple(
                [limit.share(processes) for limit, word in zip(limits, words, strict=True) if word == "local"]
            ),
            denied="deny" in enforced,
            rules=tuple([limit.rule for limit in limits]),
            shadows=any(limit.shadow for limit in limits),
            plan_unknown=unknown,
            priority=self._limits.priorities.get(plan, "normal"),
        )

    def _plan(self, tenant: str, key: str, claim: str | None) -> tuple[str, bool]:
        """Return the plan's name (key's entry, tenant's, claim, default) and whether the claim names no plan."""
        entry = self._tenants.get(tenant, config.TenantEntry())
        key_entry = entry.keys.get(key, config.KeyEntry())
        configured = key_entry.plan or entry.plan
        if configured is not None:
            return configured, False
        if claim is None or claim in self._limits.plans:
            return claim or self._limits.fallback_plan, False
        # A token's own word is shown cut and escaped: it is as long and as strange as its issuer lets it be.
        log.warning("token claims the unknown plan %.64s; using %s", ascii(claim), self._limits.fallback_plan)
        return self._limits.fallback_plan, True

    def _overridden(self, rules: tuple[config.Rule, ...], tenant: str, key: str) -> Iterator[config.Rule]:
        entry = self._tenants.get(tenant, config.TenantEntry())
        key_entry = entry.keys.get(key, config.KeyEntry())
        for rule in rules:
            changed = rule
            for override in (entry.override.get(rule.name), key_entry.override.get(rule.name)):
                if override is not None:
                    changed = _override(changed, override)
            yield changed


def costs(limits: tuple[Limit, ...], call: Call, *, default_output_tokens: int) -> tuple[int, ...]:
    """Return what `call` reserves of each limit: 1 call, or the estimated input and the largest output it declared."""
    output = (default_output_tokens if call.output_tokens is None else call.output_tokens) * call.generations
    tokens = call.input_tokens
    figures = [1, 1, tokens + output, tokens, output]
    places, _, dearest = counted(limits)
    if dearest:
        figures += [price.units(tokens, output) for price in dearest]
    return tuple(map(figures.__getitem__, places))


@lru_cache(maxsize=REMEMBERED)
def counted(limits: tuple[Limit, ...]) -> tuple[tuple[int, ...], tuple[Price, ...], tuple[Price, ...]]:
    """Return for each of `limits` the place of what it counts among a call's figures.

    Those are `UNITS`, and behind them what the call counts at each of the prices that come second. Third are these
    prices at their dearest.
    """
    prices = tuple(dict.fromkeys([limit.price for limit in limits if limit.price is not None]))
    units = (*UNITS, *prices)
    return tuple([units.index(limit.unit) for limit in limits]), prices, tuple([price.dearest for price in prices])


def _override(rule: config.Rule, override: config.RuleOverride) -> config.Rule:
    """Return `rule` with the figure and the shadow of `override`; a figure of another measure changes nothing."""
    measure = _measure(rule)[0]
    update = {measure: getattr(override, measure), "shadow": override.shadow}
    return rule.model_copy(update={name: value for name, value in update.items() if value is not None})


def _measure(rule: config.Rule) -> tuple[str, int]:
    """Return the config key of what `rule` limits, and its figure."""
    for name in ("requests", "tokens"):
        figure: int | None = getattr(rule, name)
        if figure is not None:
            return name, figure
    assert rule.concurrent is not None, "the config has exactly one measure in a rule"
    return "concurrent", rule.concurrent


def _limit(rule: config.Rule, tag: str, names: dict[str, str]) -> Limit:
    name, figure = _measure(rule)
    measure: Measure = "requests" if name == "requests" else "tokens" if name == "tokens" else "concurrency"
    window_us = round(rule.window * 1_000_000) if isinstance(rule.window, float) else 0
    price = _price(rule)
    kind: Kind = "lease" if rule.window is None else "bucket" if isinstance(rule.window, float) else rule.window
    return Limit(
        rule=rule.name,
        measure=measure,
        kind=kind,
        limit=min(figure, MAX_COUNT),
        window_us=window_us,
        key=_key(rule, f"{measure}-{_tokens_of(rule, price)}-{window_us or kind}", tag, names),
        shadow=rule.shadow,
        count=rule.count,
        price=price,
    )


def _price(rule: config.Rule) -> Price | None:
    """Return the price of `rule`, None where every token that it counts counts 1. What it does not count is free."""
    plain = Price(*[UNIT * (kind in config.KINDS[rule.count]) for kind in _KINDS_OF_PRICE])
    found = Price(
        *[round(rule.weights.of(kind) * UNIT) * (kind in config.KINDS[rule.count]) for kind in _KINDS_OF_PRICE]
    )
    return None if found == plain else found


def _tokens_of(rule: config.Rule, price: Price | None) -> str:
    """Return which tokens `rule` counts, and for how much each."""
    return rule.count if price is None else "-".join(map(str, (rule.count, *price)))


def _key(rule: config.Rule, units: str, tag: str, names: dict[str, str]) -> str:
    """Return the key of the rule's state: made of configured words and digests, never of a client's bytes.

    What is counted is part of it: rules of one name in two plans share a count only where it means the same.
    """
    place = tag if {"tenant", "key"} & set(rule.per) else EVERYBODY
    # In the config's order of names, so that `per: [model, key]` and `per: [key, model]` are one count.
    whose = [(name, value) for name, value in names.items() if name in rule.per]
    who = "-".join(name for name in ("tenant", *names) if name in rule.per) or "everybody"
    return f"gw:{{{place}}}:{rule.name}:{units}:{who}:{digest(json.dumps(whose))}"
