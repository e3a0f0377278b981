"""JMESPath expressions: what is found without jmespath is what jmespath finds."""

import json
from typing import Any

import jmespath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.identity.expression import compiled
from tests.identity_provider import any_json

NAMES = ["a", "b", "sub", "https://x/a.b", "", "\u540d", 'q"\\']
quoted = st.sampled_from(NAMES).map(json.dumps)
paths = st.lists(quoted, min_size=1, max_size=3).map(".".join)
easy = st.recursive(
    st.sampled_from(["a", "b", "sub"]) | paths,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(" || ".join)
        | st.builds("({}).{}".format, inner, quoted)
        | st.builds("{} || ({})".format, inner, inner)
    ),
    max_leaves=6,
)
hard = st.builds(
    str.format,
    st.sampled_from(["{}[0]", "!{}", "{} && a", "{} | @", "{}.*", "[{}, a]", "{}.{{x: a}}", "{} || `0`", "length({})"]),
    paths,
)
values: st.SearchStrategy[Any] = st.recursive(
    any_json | st.sampled_from([0, 0.0, False, "", [], {}, None, [[]], [0]]),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
claims = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)


def outcome(search: Any, of: Any) -> Any:
    try:
        found = search(of)
    except (ValueError, TypeError) as error:
        return type(error)
    return type(found), found


@given(expression=easy | hard, of=claims)
@example(expression="a || b", of={"a": 0, "b": "x"})
@example(expression="a || b", of={"a": False, "b": "x"})
@example(expression="a.b || sub", of={"a": "text", "sub": "s"})
def test_every_expression_finds_what_jmespath_finds(expression: str, of: dict[str, Any]) -> None:
    assert repr(outcome(compiled(expression), of)) == repr(outcome(jmespath.compile(expression).search, of))


@pytest.mark.parametrize("expression", ["sub", "org_id || sub", '"https://x/y"', '"kubernetes.io".namespace || a.b.c'])
def test_names_and_paths_do_not_need_jmespath(expression: str) -> None:
    assert compiled(expression).__module__ == "gateway.identity.expression"
    assert not hasattr(compiled(expression), "__self__")


def test_others_do() -> None:
    assert isinstance(getattr(compiled("join(':', [a, b])"), "__self__", None), jmespath.parser.ParsedResult)
