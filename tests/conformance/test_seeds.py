"""The two OpenAPI documents and what the gateway makes of them hold together: a drift on either side fails here."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from gateway.calls.call import PATHS
from gateway.schemas import chat, completions, shared

HERE = Path(__file__).parent
OPENAPI = Path(chat.__file__).with_name("openapi.json")
# What the models say beyond the documents: texts, defaults that are documentation only, and ranges (held by
# test_request_fields.py).
OURS = {
    "title", "description", "default", "example", "minimum", "maximum", "exclusiveMinimum",
    "minLength", "maxLength", "minItems", "maxItems",
}  # fmt: skip

Schema = dict[str, Any]


def seed(name: str) -> Schema:
    fenced = re.search(r"^````yaml[^\n]*\n(.*?)^````", (HERE / "seeds" / name).read_text(), re.DOTALL | re.MULTILINE)
    assert fenced is not None, f"{name} holds no YAML"
    document: Schema = yaml.safe_load(fenced[1])
    return document


CHAT, COMPLETIONS = seed("chat-completions.md"), seed("completions.md")
CHAT_COMPONENTS: dict[str, Schema] = CHAT["components"]["schemas"]
COMPLETIONS_COMPONENTS: dict[str, Schema] = COMPLETIONS["components"]["schemas"]
COMPONENTS = CHAT_COMPONENTS | COMPLETIONS_COMPONENTS
MODULES = (shared, chat, completions)


def merged() -> Schema:
    document = copy.deepcopy(CHAT)
    del document["servers"]
    document["paths"] |= COMPLETIONS["paths"]
    document["components"]["schemas"] |= COMPLETIONS_COMPONENTS
    return document


def model(name: str) -> Any:
    (module,) = [module for module in MODULES if name in module.__all__]
    return getattr(module, name)


def of_document(schema: Schema, components: dict[str, Schema]) -> Schema:
    """The part of a document's schema that models are held to: alternatives in place, everything else by name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return of_document(components[name], components) if "anyOf" in components[name] else {"$ref": name}
    if "allOf" in schema:
        parts = [components[part["$ref"].rpartition("/")[2]] if "$ref" in part else part for part in schema["allOf"]]
        properties: Schema = {}
        for part in reversed(parts):  # the first part narrows what the second one has
            properties |= part["properties"]
        required = {name for part in parts for name in part["required"]}
        return of_document({"type": "object", "properties": properties, "required": sorted(required)}, components)
    if "anyOf" in schema:
        schema = {key: value for key, value in schema.items() if key != "type"}  # "object", beside strings and lists
    if "discriminator" in schema:
        mapping = {key: value["$ref"] for key, value in schema["discriminator"]["mapping"].items()}
        schema |= {"discriminator": schema["discriminator"] | {"mapping": mapping}}
    return plain(schema, lambda inner: of_document(inner, components))


def of_model(schema: Schema) -> Schema:
    """The same part of what pydantic says of a model; null stands for absence and is left out."""
    schema = {key: value for key, value in schema.items() if key != "$defs"}
    if "$ref" in schema:
        return {"$ref": schema["$ref"].rpartition("/")[2]}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "patternProperties" in schema:
        (schema["additionalProperties"],) = schema.pop("patternProperties").values()
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    if "anyOf" in schema:
        schema["anyOf"] = [one for one in schema["anyOf"] if one != {"type": "null"}]
        if len(schema["anyOf"]) == 1:
            return of_model(schema["anyOf"][0])
    return plain(schema, of_model)


def plain(schema: Schema, inner: Callable[[Schema], Schema]) -> Schema:
    result = {key: value for key, value in schema.items() if key not in OURS}
    for key in ("items", "additionalProperties"):
        if key in result:
            result[key] = inner(result[key])
    if "properties" in result:
        result["properties"] = {name: inner(value) for name, value in result["properties"].items()}
    if "anyOf" in result:
        result["anyOf"] = sorted(
            (inner(one) for one in result["anyOf"]), key=lambda one: json.dumps(one, sort_keys=True)
        )
    if "required" in result:
        result["required"] = sorted(result["required"])
    if "discriminator" in result:
        mapping = {key: value.rpartition("/")[2] for key, value in result["discriminator"]["mapping"].items()}
        result["discriminator"] = {"propertyName": result["discriminator"]["propertyName"], "mapping": mapping}
    return result


@pytest.mark.parametrize(
    ("module", "components"),
    [
        (shared, set(CHAT_COMPONENTS) & set(COMPLETIONS_COMPONENTS)),
        (chat, set(CHAT_COMPONENTS) - set(COMPLETIONS_COMPONENTS)),
        (completions, set(COMPLETIONS_COMPONENTS) - set(CHAT_COMPONENTS)),
    ],
    ids=["shared", "chat", "completions"],
)
def test_every_component_has_a_model_of_its_name_and_every_model_is_a_component(
    module: ModuleType, components: set[str]
) -> None:
    classes = {
        name for name, value in vars(module).items() if is_typeddict(value) and value.__module__ == module.__name__
    }
    assert sorted(set(module.__all__)) == sorted(components)
    assert classes <= components


@pytest.mark.parametrize("name", sorted(set(COMPONENTS)))
def test_a_model_has_the_properties_types_formats_and_requirements_of_its_component(name: str) -> None:
    said = TypeAdapter(model(name)).json_schema(by_alias=True)
    assert of_model(said) == of_document(COMPONENTS[name], COMPONENTS)


@pytest.mark.parametrize("name", sorted(set(CHAT_COMPONENTS) & set(COMPLETIONS_COMPONENTS)))
def test_a_shared_component_is_the_same_in_both_documents(name: str) -> None:
    assert CHAT_COMPONENTS[name] == COMPLETIONS_COMPONENTS[name]


def test_no_model_fills_in_a_default() -> None:
    defaults = {
        f"{name}.{field}": said["default"]
        for name in COMPONENTS
        for field, said in TypeAdapter(model(name)).json_schema().get("properties", {}).items()
        if "default" in said
    }
    assert defaults == {}


@pytest.mark.parametrize(
    "drift",
    [
        lambda schema: schema["properties"].pop("seed"),
        lambda schema: schema["properties"].update(invented={"type": "string"}),
        lambda schema: schema["properties"]["seed"].update(format="int32"),
        lambda schema: schema["properties"]["stream"].update(type="string"),
        lambda schema: schema["required"].append("seed"),
        lambda schema: schema["required"].remove("model"),
        lambda schema: schema["properties"]["stop"].update({"$ref": "#/components/schemas/Usage"}),
        lambda schema: schema["properties"]["logit_bias"]["additionalProperties"].update(type="integer"),
    ],
)
def test_a_drift_of_the_document_is_seen(drift: Callable[[Schema], object]) -> None:
    schema = copy.deepcopy(COMPONENTS["ChatCompletionRequestBody"])
    drift(schema)
    said = TypeAdapter(model("ChatCompletionRequestBody")).json_schema(by_alias=True)
    assert of_model(said) != of_document(schema, COMPONENTS)


def test_the_served_document_is_both_documents_in_one_without_their_servers() -> None:
    served = json.loads(OPENAPI.read_bytes())
    assert served == merged()
    assert set(served["paths"]) == set(PATHS.values())
    assert "servers" not in served
    for document in (CHAT, COMPLETIONS):
        assert {key: served[key] for key in ("openapi", "info", "security", "tags")} == {
            key: document[key] for key in ("openapi", "info", "security", "tags")
        }
        assert served["components"]["securitySchemes"] == document["components"]["securitySchemes"]
