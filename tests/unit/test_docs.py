"""docs/configuration.md names every key there is with its real default and bounds, and every example is a good one."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import annotated_types
import pytest
import yaml
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from gateway import config
from gateway.config import file, units
from tests.config_keys import KEYS
from tests.documents import OWN, ROOT, block_in, rows, section, text_of


class Key(NamedTuple):
    type: str
    default: str
    meaning: str


def documented_keys() -> dict[str, Key]:
    found = [row for row in rows(text_of("configuration")) if len(row) == 4 and row[0].startswith("`")]
    names = [row[0].strip("`") for row in found]
    assert len(set(names)) == len(names), "a key stands twice"
    return dict(zip(names, [Key(*row[1:]) for row in found], strict=True))


DOCUMENTED = documented_keys()


def test_the_documented_keys_are_those_that_there_are() -> None:
    assert set(DOCUMENTED) == set(KEYS)
    assert all(key.meaning.endswith((".", ")")) for key in DOCUMENTED.values())


@pytest.mark.parametrize("path", sorted(KEYS.keys() & DOCUMENTED.keys()))
def test_a_documented_default_is_the_real_one(path: str) -> None:
    field, told = KEYS[path], DOCUMENTED[path].default
    if field.is_required():
        assert told == "required"
    elif path == "limits.plans":
        assert "(#the-default-plan)" in told
        assert TypeAdapter(config.Limits).validate_python(example("The default plan")["limits"]) == config.Limits()
    elif told == "`null`":
        assert field.default is None
    else:
        adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
        assert adapter.validate_python(yaml.safe_load(told.strip("`"))) == field.default


def example(title: str) -> Any:
    return yaml.safe_load(block_in(section("configuration", title), ""))


Bound = tuple[Literal["ge", "gt", "le"], float]
# Bounds that a validator holds, because they are of one alternative only.
HELD_ELSEWHERE: dict[str, set[Bound]] = {
    "limits.plans.*[].window": {("ge", config.MIN_WINDOW_S), ("le", config.MAX_WINDOW_S)}
}


@pytest.mark.parametrize("path", sorted(KEYS.keys() & DOCUMENTED.keys()))
def test_documented_bounds_and_choices_are_the_real_ones(path: str) -> None:
    constraints, choices = constraints_of(KEYS[path].rebuild_annotation())
    told = DOCUMENTED[path].type
    assert set(bounds_in(told)) == bounds_of(constraints) | HELD_ELSEWHERE.get(path, set())
    if choices and path != "limits.plans.*[].window":
        assert set(re.findall(r"`([^`]+)`", told)) == choices
    for choice in choices:
        assert f"`{choice}`" in told
    filled = any(isinstance(one, annotated_types.MinLen) and one.min_length for one in constraints)
    assert ("not empty" in told) == (filled and KEYS[path].annotation is not str)


def constraints_of(annotation: Any) -> tuple[list[object], set[str]]:
    """Return what bounds the value itself or, of a list, its length; and the words it may be, or be made of."""
    if get_origin(annotation) is Literal:
        return [], set(get_args(annotation))
    constraints: list[object] = []
    choices: set[str] = set()
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        for one in inner[1:]:
            constraints += one.metadata if isinstance(one, FieldInfo) else [one]
        inner = inner[:1]
    for arg in inner if get_origin(annotation) is not dict else ():
        below, words = constraints_of(arg)
        choices |= words
        constraints += below if get_origin(annotation) is not tuple else []
    return constraints, choices


def bounds_of(constraints: Iterable[object]) -> set[Bound]:
    found: set[Bound] = set()
    for one in constraints:
        for name in ("ge", "gt", "le"):
            figure = getattr(one, name, None)
            if isinstance(figure, int | float) and figure != 2**53:  # the largest integer that is exact anywhere
                found.add((name, figure))
    return found


def bounds_in(text: str) -> Iterator[Bound]:
    amount = r"(\d+(?:\.\d+)?(?:ms|s|m|h|d)?)\b"
    for low, high in re.findall(rf"\b{amount} to {amount}(?! characters)", text):
        if not text.startswith("letters"):
            yield "ge", figure(low)
            yield "le", figure(high)
    sides: tuple[tuple[Literal["ge", "gt", "le"], str], ...] = (
        ("ge", "at least"),
        ("gt", "more than"),
        ("le", "at most"),
    )
    for name, word in sides:
        for one in re.findall(rf"{word} {amount}", text):
            yield name, figure(one)


def figure(text: str) -> float:
    return float(text) if text.replace(".", "").isdecimal() else units.seconds(text)


def examples() -> list[tuple[str, str]]:
    texts = {name: text_of(name) for name in OWN} | {"README": (ROOT / "README.md").read_text(encoding="utf-8")}
    blocks = [
        (name, block) for name, text in texts.items() for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    ]
    return [(name, block) for name, block in blocks if not block.startswith("groups:")]


@pytest.mark.parametrize(("document", "block"), examples())
def test_every_example_is_a_good_configuration(document: str, block: str) -> None:
    rest = {
        "auth": {"development_key": "key.pem"},
        "models": {"m": {"pool": "p"}},
        "pools": {"p": {"replicas": ["http://127.0.0.1:8000"]}},
    }
    try:
        file.parse(
            yaml.safe_dump(rest | yaml.safe_load(block)),
            environment={"LLAMA_KEY": "secret", "KEYCLOAK_SECRET": "secret"},
        )
    except file.BadConfig as error:
        pytest.fail(f"{document}: {error}\n{block}")


def test_alerts_name_metrics_and_labels_that_there_are() -> None:
    known = {row[0].strip("`"): set(re.findall(r"\w+", row[2])) for row in rows(text_of("metrics")) if len(row) == 4}
    named = 0
    for rule in alerts():
        for metric, selector in re.findall(r"\b(gateway_\w+)(?:\{(.*?)\})?", rule["expr"]):
            name = re.sub("_(bucket|count)$", "", metric)
            assert name in known, metric
            assert set(re.findall(r"(\w+)(?:=|!)", selector)) <= known[name], metric
            named += 1
    assert named > 10


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(block_in(text_of("operations"), "groups:"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_metric_that_a_document_names_is_listed() -> None:
    known = {row[0].strip("`") for row in rows(text_of("metrics"))}
    for name in (*OWN, "deploy"):
        for metric in re.findall(r"\bgateway_[a-z_]+\b", text_of(name)):
            assert re.sub("_(bucket|count)$", "", metric) in known, f"{name}.md: {metric}"
