"""Every key of config.yaml that there is, by the models of the config."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway import config


def keys() -> Iterator[tuple[str, FieldInfo]]:
    """Every key of every section, as `pools.*.replicas[].url`."""
    waiting: list[tuple[str, type[BaseModel]]] = [("", config.Config)]
    while waiting:
        prefix, model = waiting.pop()
        for name, field in model.model_fields.items():
            yield prefix + name, field
            if name != "api_keys_file":  # written as a path
                waiting += [(f"{prefix}{name}{below}.", inner) for below, inner in sections_in(field.annotation)]


def sections_in(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation is not config.Listen:  # written as one string
            yield "", annotation
        return
    step = {tuple: "[]", dict: ".*"}.get(get_origin(annotation), "")
    for arg in get_args(annotation):
        yield from ((step + below, inner) for below, inner in sections_in(arg))


KEYS = dict(keys())
