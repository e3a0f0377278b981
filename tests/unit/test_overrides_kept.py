"""How overrides are kept, asked for and judged: what one writes another reads, and nonsense is told, never raised."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway import config
from gateway.admission.limit import MAX_COUNT
from gateway.admission.overrides.asked import place_asked, plan_asked, rule_asked
from gateway.admission.overrides.entry import judge
from gateway.admission.overrides.override import FIGURES, read
from gateway.errors import InvalidValue

NOW_S = 1_795_953_600.25
LIMITS = config.Limits.model_validate(
    {
        "plans": {
            "standard": [
                {"name": "key-requests", "per": ["key"], "requests": 10, "window": "1m"},
                {"name": "same", "tokens": 10, "window": "day"},
            ],
            "large": [{"name": "same", "concurrent": 10}],
        }
    }
)

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=20)


@given(
    tenant=NAMES,
    key=st.none() | NAMES,
    rule=NAMES,
    figure=st.none() | st.tuples(st.sampled_from(FIGURES), st.integers(0, MAX_COUNT)),
    shadow=st.booleans(),
    ends=st.none() | st.sampled_from(["1s", "2h", "366d"]),
)
def test_an_override_is_read_as_it_was_written(
    tenant: str, key: str | None, rule: str, figure: tuple[str, int] | None, shadow: bool, ends: str | None
) -> None:
    members = {
        "tenant": tenant,
        "key": key,
        "rule": rule,
        "shadow": shadow,
        "for": ends,
        **dict([figure] if figure else []),
    }
    asked = rule_asked({name: value for name, value in members.items() if value is not None}, now_s=NOW_S)
    assert asked.name.isascii()
    assert asked.name.isprintable()
    assert read(asked.name, asked.value()) == asked
    place = {"tenant": tenant, "rule": rule} | ({} if key is None else {"key": key})
    assert place_asked(place, of_rule=True) == asked.name

    of_plan = plan_asked({"tenant": tenant, "plan": "large"} | ({} if key is None else {"key": key}), now_s=NOW_S)
    assert read(of_plan.name, of_plan.value()) == of_plan
    del place["rule"]
    assert place_asked(place, of_rule=False) == of_plan.name


@given(st.lists(st.tuples(NAMES, st.none() | NAMES, st.none() | NAMES), min_size=2, max_size=2, unique=True))
@example([("a", "b", None), ("a b", None, None)])
@example([("a", None, "plan"), ("a", None, None)])
def test_what_is_of_different_things_has_different_names(places: list[tuple[str, str | None, str | None]]) -> None:
    names = [
        place_asked(
            {name: word for name, word in zip(("tenant", "key", "rule"), place, strict=True) if word is not None},
            of_rule=place[2] is not None,
        )
        for place in places
    ]
    assert names[0] != names[1]


def test_it_begins_at_the_next_second_and_ends_as_much_later_as_asked() -> None:
    asked = rule_asked({"tenant": "acme", "rule": "same", "tokens": 5, "for": "90s"}, now_s=NOW_S)
    assert (asked.set_at, asked.until) == (1_795_953_601, 1_795_953_691)
    assert json.loads(asked.value()) == {"tokens": 5, "set_at": "2026-11-29T12:00:01Z", "until": "2026-11-29T12:01:31Z"}


RULE = {"tenant": "acme", "rule": "same"}


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"rule": "same", "tokens": 1}, "tenant"),
        ({"tenant": "acme", "tokens": 1}, "rule"),
        ({**RULE, "tenant": ""}, "tenant"),
        ({**RULE, "tenant": "x" * 257, "tokens": 1}, "tenant"),
        ({**RULE, "tenant": 5, "tokens": 1}, "tenant"),
        ({**RULE, "key": "", "tokens": 1}, "key"),
        (RULE, None),
        ({**RULE, "tokens": -1}, "tokens"),
        ({**RULE, "tokens": 2**53}, "tokens"),
        ({**RULE, "tokens": 1.5}, "tokens"),
        ({**RULE, "tokens": "5"}, "tokens"),
        ({**RULE, "tokens": True}, "tokens"),
        ({**RULE, "tokens": 1, "requests": 1}, "tokens"),
        ({**RULE, "shadow": 1}, "shadow"),
        ({**RULE, "tokens": 1, "plan": "large"}, "plan"),
        ({**RULE, "tokens": 1, "colour\n": "red"}, "colour\n"),
        ({**RULE, "tokens": 1, "for": "2"}, "for"),
        ({**RULE, "tokens": 1, "for": "900ms"}, "for"),
        ({**RULE, "tokens": 1, "for": "367d"}, "for"),
        ({**RULE, "tokens": 1, "for": 7200}, "for"),
    ],
)
def test_a_wrong_member_is_named(members: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidValue) as raised:
        rule_asked(members, now_s=NOW_S)
    assert raised.value.param == param
    assert raised.value.message.isprintable()


def fault(name: str, value: Any) -> str | None:
    return judge(name, value if isinstance(value, bytes) else json.dumps(value).encode(), LIMITS).fault


SET = {"set_at": "2026-11-29T12:00:00Z"}


def test_what_the_config_has_no_place_for_is_left_out_with_the_reason() -> None:
    assert fault("rule same acme", {"tokens": 5, **SET}) is None
    assert fault("rule same acme", {"concurrent": 5, **SET}) is None
    assert fault("rule same acme", {"shadow": True, **SET}) is None
    assert fault("plan acme key-1", {"plan": "large", **SET}) is None
    assert fault("rule gone acme", {"tokens": 5, **SET}) == "No plan has a rule 'gone'; there are key-requests, same."
    assert fault("plan acme", {"plan": "gone", **SET}) == "There is no plan 'gone'; there are standard, large."
    assert fault("rule same acme", {"requests": 5, **SET}) == "Rule same limits tokens or concurrent, not requests."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rule same acme", b""),
        ("rule same acme", b"\xff"),
        ("rule same acme", b"[" * 100_000),
        ("rule same acme", []),
        ("rule same acme", {"tokens": 5}),
        ("rule same acme", {"tokens": 5, "set_at": "yesterday"}),
        ("rule same acme", {"tokens": 5, "set_at": 1_795_953_600}),
        ("rule same acme", {"tokens": 5, **SET, "until": None}),
        ("rule same acme", {"tokens": 5, **SET, "weights": {"cached": 0.1}}),
        ("rule same acme", {"tokens": 10**400, **SET}),
        ("plan acme", {"plan": ["large"], **SET}),
        ("plan acme", SET),
        ("", {"tokens": 5, **SET}),
        ("rule", {"tokens": 5, **SET}),
        ("rule same", {"tokens": 5, **SET}),
        ("rule same acme key-1 more", {"tokens": 5, **SET}),
        ("rule same %61cme", {"tokens": 5, **SET}),
        ("rule same %ff", {"tokens": 5, **SET}),
        ("rule same ", {"tokens": 5, **SET}),
        ("role same acme", {"tokens": 5, **SET}),
    ],
)
def test_what_is_no_override_is_left_out(name: str, value: Any) -> None:
    found = fault(name, value)
    assert found
    assert found.isprintable()


@given(st.text(max_size=30) | st.sampled_from(["rule same acme", "plan acme"]), st.binary(max_size=60))
def test_no_bytes_at_all_are_too_much_for_a_reader(name: str, value: bytes) -> None:
    judge(name, value, LIMITS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=25),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(["tokens", "shadow", "plan", "set_at", "until", "requests"])


@given(st.sampled_from(["rule same acme", "plan acme"]), st.dictionaries(MEMBERS, JSON | st.just(SET["set_at"])))
def test_nor_is_any_json(name: str, members: dict[str, Any]) -> None:
    judge(name, json.dumps(members).encode(), LIMITS)
