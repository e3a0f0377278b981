"""Which limits apply to whom, under which keys, and what a call reserves of them."""

import itertools
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.admission.limit import Limit
from gateway.admission.rules import Applying, Rulebook, costs
from gateway.calls.call import Call
from gateway.identity.principal import Principal

SMALL = {"name": "key-requests", "per": ["key"], "requests": 10, "window": "1m"}
LARGE = {**SMALL, "requests": 100}
TOKENS = {"name": "key-tokens", "per": ["key", "model"], "tokens": 1000, "window": "month"}
PLANS = {"standard": [SMALL, TOKENS], "large": [LARGE], "huge": [{**SMALL, "requests": 10**6}]}


def rulebook(**changes: Any) -> Rulebook:
    return Rulebook(config.Limits.model_validate({"plans": PLANS, **changes}))


def applying(
    book: Rulebook,
    *,
    tenant: str = "acme",
    key: str = "key-1",
    plan: str | None = None,
    model: str = "m",
    pool: str = "p",
) -> Applying:
    return book.applying(Principal(tenant, key, plan), model=model, pool=pool)


def figures(found: Applying) -> dict[str, int]:
    return {limit.rule: limit.limit for limit in found.limits}


def keys(found: Applying) -> list[str]:
    return [limit.key for limit in found.limits]


def test_a_principal_without_a_plan_has_the_default() -> None:
    assert figures(applying(rulebook())) == {"key-requests": 10, "key-tokens": 1000}
    assert figures(applying(rulebook(default_plan="large"))) == {"key-requests": 100}


def test_the_plan_is_the_keys_entry_else_the_tenants_else_the_claim() -> None:
    book = rulebook(tenants={"acme": {"plan": "large", "keys": {"special": {"plan": "huge"}}}})
    assert figures(applying(book, key="special", plan="standard")) == {"key-requests": 10**6}
    assert figures(applying(book, plan="huge")) == {"key-requests": 100}
    assert figures(applying(book, tenant="other", plan="huge")) == {"key-requests": 10**6}
    assert figures(applying(book, tenant="other", key="special")) == {"key-requests": 10, "key-tokens": 1000}


@pytest.mark.parametrize("claim", ["", "unlimited", "Standard", "x" * 10_000, "a\nb\ud800"])
def test_an_unknown_claimed_plan_means_the_default_and_is_noticed(claim: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    book = rulebook()
    for _ in range(3):
        found = applying(book, plan=claim)
        assert figures(found) == figures(applying(book))
        assert found.plan_unknown
    (record,) = caplog.records
    assert len(record.getMessage()) < 200
    assert record.getMessage().isprintable()


def test_a_known_plan_or_none_is_not_noticed() -> None:
    assert not applying(rulebook(), plan="large").plan_unknown
    assert not applying(rulebook()).plan_unknown
    assert not applying(rulebook(tenants={"acme": {"plan": "large"}}), plan="unlimited").plan_unknown


def test_overrides_of_the_tenant_then_of_the_key_change_the_named_figures_only() -> None:
    book = rulebook(
        tenants={
            "acme": {
                "override": {"key-requests": {"requests": 20}, "key-tokens": {"tokens": 7}},
                "keys": {"key-1": {"override": {"key-requests": {"requests": 30, "shadow": True}}}},
            }
        }
    )
    by_rule = {limit.rule: limit for limit in applying(book).limits}
    assert (by_rule["key-requests"].limit, by_rule["key-requests"].shadow) == (30, True)
    assert (by_rule["key-tokens"].limit, by_rule["key-tokens"].shadow) == (7, False)
    assert figures(applying(book, key="key-2")) == {"key-requests": 20, "key-tokens": 7}
    assert figures(applying(book, tenant="other")) == {"key-requests": 10, "key-tokens": 1000}


def test_an_override_of_another_measure_than_the_plans_rule_changes_nothing() -> None:
    tokens = {"name": "key-requests", "per": ["key"], "tokens": 5, "window": "day"}
    book = rulebook(
        plans={"standard": [SMALL], "other": [tokens]},
        default_plan="standard",
        tenants={"acme": {"override": {"key-requests": {"tokens": 9}}}},
    )
    assert figures(applying(book)) == {"key-requests": 10}
    assert figures(applying(book, plan="other")) == {"key-requests": 9}


def test_an_overridden_limit_counts_on_where_it_did() -> None:
    plain, overridden = rulebook(), rulebook(tenants={"acme": {"override": {"key-requests": {"requests": 20}}}})
    assert keys(applying(plain)) == keys(applying(overridden))


def test_a_rule_for_models_applies_to_those_only_and_globs_cross_slashes() -> None:
    rules = [
        {**SMALL, "name": "named", "models": ["meta-llama/Llama-3.1-8B-Instruct"]},
        {**SMALL, "name": "glob", "models": ["meta-*", "x"]},
    ]
    book = rulebook(plans={"standard": rules})
    assert list(figures(applying(book, model="meta-llama/Llama-3.1-8B-Instruct"))) == ["named", "glob"]
    assert list(figures(applying(book, model="meta-llama/other"))) == ["glob"]
    assert list(figures(applying(book, model="Meta-llama/other"))) == []


PRINCIPALS = [
    {"tenant": tenant, "key": key, "model": model, "pool": pool}
    for tenant, key, model, pool in itertools.product(["a", "b"], ["k1", "k2"], ["m1", "m2"], ["p1", "p2"])
]


@pytest.mark.parametrize(
    "per", [list(per) for n in range(5) for per in itertools.combinations(["key", "tenant", "model", "pool"], n)]
)
def test_a_rule_counts_apart_what_it_is_per_and_together_what_it_is_not(per: list[str]) -> None:
    book = rulebook(plans={"standard": [{**SMALL, "per": per}]})
    # Equal key ids of two tenants are two keys.
    apart = {*per, "tenant"} if "key" in per else set(per)
    groups: dict[str, set[tuple[str, ...]]] = {}
    for who in PRINCIPALS:
        (key,) = keys(applying(book, **who))
        groups.setdefault(key, set()).add(tuple(who[name] for name in sorted(apart)))
    assert all(len(group) == 1 for group in groups.values())
    assert len(groups) == 2 ** len(apart)


def test_the_order_of_per_means_nothing() -> None:
    one, other = (rulebook(plans={"standard": [{**SMALL, "per": per}]}) for per in (["key", "model"], ["model", "key"]))
    assert keys(applying(one)) == keys(applying(other))


def test_rules_of_one_name_that_count_different_things_do_not_share_a_count() -> None:
    variants: list[dict[str, Any]] = [
        {"requests": 10, "window": "1m"},
        {"requests": 10, "window": "2m"},
        {"requests": 10, "window": "day"},
        {"tokens": 10, "window": "1m"},
        {"tokens": 10, "window": "1m", "count": "input"},
        {"tokens": 10, "window": "1m", "count": "output"},
        {"concurrent": 10},
    ]
    found = [
        keys(applying(rulebook(plans={"standard": [{"name": "same", "per": ["key"], **variant}]})))[0]
        for variant in variants
    ]
    assert len(set(found)) == len(variants)


@pytest.mark.parametrize(
    ("weights", "count", "price"),
    [
        ({}, "total", None),
        ({"input": 1, "cached": 1.0, "output": 1.0, "reasoning": None}, "total", None),
        ({"input": 1}, "input", None),
        ({"cached": 0.1}, "total", (1000, 1000, 100, 1000)),
        ({"output": 4}, "total", (1000, 4000, 1000, 4000)),
        ({"input": 0.001, "output": 1000, "reasoning": 0}, "total", (1, 1_000_000, 1, 0)),
        ({"cached": 0}, "input", (1000, 0, 0, 0)),
        ({"reasoning": 2.5}, "output", (0, 1000, 0, 2500)),
    ],
)
def test_kinds_without_a_weight_count_as_what_they_are_part_of(
    weights: dict[str, float], count: str, price: tuple[int, ...] | None
) -> None:
    weighted = applying(rulebook(plans={"standard": [{**TOKENS, "count": count, "weights": weights}]}))
    assert [limit.price for limit in weighted.limits] == [price]
    plain = applying(rulebook(plans={"standard": [{**TOKENS, "count": count}]}))
    assert (keys(weighted) == keys(plain)) == (price is None)


def test_other_weights_are_another_count_and_equal_ones_of_two_plans_the_same() -> None:
    one, same, other = (
        {**TOKENS, "weights": {"output": output, "cached": cached}, "tokens": figure}
        for output, cached, figure in ((4, 0.1, 10), (4.0, 0.1, 20), (4, 0.2, 10))
    )
    book = rulebook(plans={"standard": [one], "same": [same], "other": [other]})
    assert keys(applying(book)) == keys(applying(book, plan="same"))
    assert keys(applying(book)) != keys(applying(book, plan="other"))


@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=2, max_size=2, unique=True))
def test_keys_hold_no_clients_text_and_differ_for_different_clients(names: list[str]) -> None:
    book = rulebook()
    found = [keys(applying(book, tenant=name, key=name))[0] for name in names]
    assert found[0] != found[1]
    for key in found:
        assert key.isascii()
        assert key.count("{") == key.count("}") == 1
        assert len(key) < 150


def test_everybodys_limits_have_a_tag_of_their_own_and_a_tenants_limits_the_tenants() -> None:
    rules = [
        {**SMALL, "name": f"per-{'-'.join(per)}", "per": per}
        for per in (["tenant"], ["key"], ["key", "model"], ["model"], ["pool"], [])
    ]
    found = applying(rulebook(plans={"standard": rules}))
    tags = [key.partition("{")[2].partition("}")[0] for key in keys(found)]
    assert tags == [found.account.tag] * 3 + ["all"] * 3
    assert len(found.account.tag) == 32


def call(*, prompt: int = 7, output: int | None = None, generations: int = 1) -> Call:
    return Call(
        "chat",
        "m",
        b"",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        input_tokens=prompt,
        output_tokens=output,
        generations=generations,
    )


def every_kind() -> tuple[Limit, ...]:
    rules = [
        SMALL,
        {"name": "total", "tokens": 1000, "window": "1m"},
        {"name": "in", "tokens": 1000, "window": "1m", "count": "input"},
        {"name": "out", "tokens": 1000, "window": "1m", "count": "output"},
        {"name": "at-once", "concurrent": 3},
    ]
    return applying(rulebook(plans={"standard": rules})).limits


def test_a_call_reserves_its_input_and_the_largest_output_it_declared_for_each_generation() -> None:
    assert costs(every_kind(), call(output=50, generations=3), default_output_tokens=9) == (1, 157, 7, 150, 1)


def test_a_call_that_declares_no_output_reserves_the_models_default_for_each_generation() -> None:
    assert costs(every_kind(), call(generations=2), default_output_tokens=9) == (1, 25, 7, 18, 1)


def test_a_call_that_declares_no_output_at_all_reserves_none() -> None:
    assert costs(every_kind(), call(output=0), default_output_tokens=9) == (1, 7, 7, 0, 1)


def test_a_price_is_reserved_at_the_dearer_of_what_a_token_may_turn_out_to_be() -> None:
    weights = [{"output": 4}, {"reasoning": 6, "output": 0.5}, {"cached": 0.1}, {"cached": 3, "output": 0}]
    rules = [{**TOKENS, "name": f"rule-{i}", "weights": weight} for i, weight in enumerate(weights)]
    limits = applying(rulebook(plans={"standard": [SMALL, *rules, TOKENS]})).limits
    assert costs(limits, call(output=50), default_output_tokens=9) == (1, 207, 307, 57, 21, 57)


DENIES, ALLOWS, LOCAL = ({**SMALL, "name": word, "on_store_failure": word} for word in ("deny", "allow", "local"))


@pytest.mark.parametrize(
    ("word", "rules", "denied", "alone"),
    [
        ("deny", [], True, []),
        ("allow", [], False, []),
        ("deny", [SMALL], True, []),
        ("deny", [ALLOWS], False, []),
        ("deny", [ALLOWS, SMALL], True, []),
        ("deny", [ALLOWS, {**SMALL, "shadow": True}], False, []),
        ("deny", [{**SMALL, "shadow": True}], True, []),
        ("local", [{**SMALL, "shadow": True}], False, ["key-requests"]),
        ("local", [DENIES, SMALL], True, ["key-requests"]),
        ("local", [{**DENIES, "models": ["other"]}, ALLOWS, SMALL], False, ["key-requests"]),
        ("allow", [LOCAL, SMALL, {**DENIES, "shadow": True}], False, ["local"]),
        ("allow", [LOCAL, DENIES], True, ["local"]),
    ],
)
def test_what_holds_without_the_store_is_each_rules_own_word_else_the_limits(
    word: str, rules: list[dict[str, Any]], denied: bool, alone: list[str]
) -> None:
    found = applying(rulebook(plans={"standard": rules}, on_store_failure=word))
    assert found.denied == denied
    assert [share.rule for share in found.shares] == alone
    assert [limit.rule for limit, mine in zip(found.limits, found.alone, strict=True) if mine] == alone


@pytest.mark.parametrize(
    ("word", "plans", "denies"),
    [
        ("deny", [[]], True),
        ("local", [[]], False),
        ("deny", [[SMALL], [ALLOWS]], False),
        ("deny", [[SMALL, ALLOWS], [TOKENS]], True),
        ("local", [[DENIES, SMALL], [ALLOWS, DENIES]], True),
        ("local", [[DENIES], [SMALL]], False),
        ("local", [[{**DENIES, "shadow": True}]], False),
        ("local", [[{**DENIES, "models": ["m"]}]], False),
        ("deny", [[{**SMALL, "models": ["m"]}]], True),
        ("deny", [[{**ALLOWS, "models": ["m"]}]], False),
    ],
)
def test_a_gateway_denies_all_where_no_plan_lets_a_call_through(
    word: str, plans: list[list[dict[str, Any]]], denies: bool
) -> None:
    named = {f"plan-{number}": rules for number, rules in enumerate(plans)}
    limits = {"plans": named, "default_plan": "plan-0", "on_store_failure": word}
    assert config.Limits.model_validate(limits).denies_all == denies


def test_this_processes_share_of_a_limit_is_an_equal_part_and_at_least_one_but_nothing_of_nothing() -> None:
    rules = [{**SMALL, "name": f"of-{figure}", "requests": figure} for figure in (0, 1, 3, 4, 10)]
    found = applying(rulebook(plans={"standard": rules}, expected_processes=4))
    assert [share.limit for share in found.shares] == [0, 1, 1, 1, 2]
    assert [share.key for share in found.shares] == keys(found)


def test_a_shadow_that_a_fallback_adds_has_no_say_while_the_store_is_away() -> None:
    held_rule = {"name": "held", "per": ["key"], "requests": 9, "window": "day", "on_store_failure": "allow"}
    shadow = {"name": "trial", "per": ["key"], "tokens": 9, "window": "day", "models": ["big"], "shadow": True}
    book, who = rulebook(plans={"standard": [held_rule, shadow]}, on_store_failure="deny"), Principal("acme", "key-1")
    held = book.applying(who, model="small", pool="p")
    assert not held.denied
    beyond = book.beyond(held, who, model="big", pool="p")
    assert beyond.rules == ("trial",)
    assert not beyond.denied
