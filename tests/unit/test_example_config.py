"""config.yaml, the commented example: it loads, names every key there is, and states the real defaults."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from gateway import config
from gateway.config import file

EXAMPLE = Path(__file__).parents[2] / "config.yaml"
TEXT = EXAMPLE.read_text(encoding="utf-8")


def test_the_example_loads_with_its_secret_from_the_environment() -> None:
    loaded = file.load(EXAMPLE, {"LLAMA_KEY": "sk-example"})

    keys = [pool.api_key for pool in loaded.pools.values()]
    assert [key.get_secret_value() for key in keys if key] == ["sk-example", "sk-example"]
    assert "sk-example" not in repr(loaded)


def test_without_the_secret_the_problem_names_the_variable_and_its_place() -> None:
    with pytest.raises(file.BadConfig) as caught:
        file.load(EXAMPLE, {})

    assert "pools.llama-8b.api_key: ${LLAMA_KEY} is not set in the environment" in caught.value.problems


def test_every_key_of_every_section_is_written_in_the_example() -> None:
    written = set(re.findall(r"(?<![^\s{])([a-z0-9_]+):(?=\s)", TEXT))
    missing = [f"{model.__name__}.{key}" for model in _sections() for key in model.model_fields if key not in written]

    assert missing == []


def test_the_listed_blocked_fields_are_the_default_ones() -> None:
    assert file.load(EXAMPLE, {"LLAMA_KEY": "sk-example"}).requests == config.Requests()


def test_each_default_that_a_comment_states_is_the_real_one() -> None:
    stated = re.findall(r"^ +(?:- )?([a-z_]+): .*# .*Default (.+)$", TEXT, flags=re.MULTILINE)
    fields = [item for model in _sections() for item in model.model_fields.items()]

    wrong = [
        f"{key}: Default {text}"
        for key, text in stated
        if not any(_is_default(text, field) for name, field in fields if name == key)
    ]
    assert len(stated) > 30
    assert wrong == []


def _sections() -> list[type[BaseModel]]:
    """Return every model that `Config` is made of, each once; `Listen` is written as one string and has no keys."""
    found: list[type[BaseModel]] = []
    waiting: list[object] = [config.Config]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind not in found and kind is not config.Listen:
                found.append(kind)
                waiting += [field.annotation for field in kind.model_fields.values()]
        else:
            waiting += get_args(kind)
    return found


def _is_default(text: str, field: FieldInfo) -> bool:
    """Say whether `text`, read as the file's reader would read it, is the field's default."""
    adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
    try:
        return bool(adapter.validate_python(yaml.safe_load(text)) == field.default)
    except ValidationError:
        return False
