"""Bodies accepted and refused, for every field of both documents' requests: types, ranges, rules between fields."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import config
from gateway.calls.call import Endpoint
from gateway.calls.parse import parse
from gateway.errors import BadRequest
from gateway.schemas.chat import ChatCompletionRequestBody
from gateway.schemas.completions import CompletionRequestBody

REQUESTS = config.Requests()
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Hi"}
STREAM = {"stream": True}


@dataclass(frozen=True)
class Good:
    value: Any
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bad:
    value: Any
    code: str = "invalid_value"
    param: str | None = None
    beside: dict[str, Any] = field(default_factory=dict)


Cases = dict[str, list[Good | Bad]]


def good(*values: Any, **beside: Any) -> list[Good | Bad]:
    return [Good(value, beside) for value in values]


def bad(*values: Any, code: str = "invalid_value", param: str | None = None, **beside: Any) -> list[Good | Bad]:
    return [Bad(value, code, param, beside) for value in values]


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def number(low: float, high: float) -> list[Good | Bad]:
    step = 0.001
    return good(None, low, high, (low + high) / 2) + bad(low - step, high + step, "0.5", True, [1], {}, 10**400)


MISSING = "missing_field"
UNSUPPORTED = "unsupported_value"
TEXT, IMAGE = {"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}

SHARED: Cases = {
    "model": good("m", "meta-llama/Llama-3.1-8B-Instruct", "модель")
    + bad(None, code=MISSING)
    + bad("", 5, True, ["m"], {}),
    "stream": good(None, True, False) + bad("true", "false", 1, 0, 1.0, [], {}),
    "stream_options": good(None)
    + good(None, {"include_usage": True}, {"include_usage": False}, stream=True)
    + good({"include_usage": True, "continuous_usage_stats": True, "later": [1]}, stream=True)
    + good({"include_usage": True, "continuous_usage_stats": None}, stream=True)
    + bad({"include_usage": True}, {"include_usage": False})
    + bad({"include_usage": True}, stream=False)
    + bad({"include_usage": True}, stream=None)
    + bad({}, {"include_usage": None}, code=MISSING, param="stream_options.include_usage", stream=True)
    + bad({"include_usage": "yes"}, {"include_usage": 1}, param="stream_options.include_usage", stream=True)
    + bad(
        {"include_usage": True, "continuous_usage_stats": "yes"},
        {"include_usage": True, "continuous_usage_stats": 1},
        param="stream_options.continuous_usage_stats",
        stream=True,
    )
    + bad(True, [], "usage", stream=True),
    "n": good(None, 1, 128)
    + good(2, temperature=0)
    + bad(0, -1, 129, True, 2.0, "3", [1], 10**4000)
    + bad(0, stream=True),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "temperature": number(0, 2) + good(0.1000000000000000055),
    "top_p": good(None, 0.001, 1, 1.0) + bad(0, -0.1, 1.001, "1", True),
    "logit_bias": good(None, {}, {"50256": -100, "0": 100, "7": 0.5})
    + bad({"1": 100.1}, {"1": -101}, {"1": "5"}, {"1": None}, {"1": True}, {"a": 1}, {"": 1}, {"1.0": 1}, {"-1": 1})
    + bad([], 5, "1"),
    "stop": good(None, "\n", " ", "END", [], ["a"], ["\n", "b", "c", "d"])
    + bad("", 5, True, {}, ["a", "b", "c", "d", "e"])
    + bad([""], [5], [None], param="stop[0]")
    + bad(["a", ""], param="stop[1]"),
    "seed": good(None, 0, -1, 42, 2**63 - 1, -(2**63)) + bad(2**63, -(2**63) - 1, 12345678901234567890, 1.0, "1", True),
}

CHAT: Cases = SHARED | {
    "messages": good([USER], [USER] * 300)
    + good([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "", "name": "a-b"}])
    + good([{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]}])
    + good([{"role": "assistant", "reasoning_content": "…", "tool_calls": []}, {"role": "assistant"}])
    + good([{"role": "tool", "tool_call_id": "c", "content": [TEXT, TEXT]}])
    + good(said(), said(TEXT, IMAGE), said({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}))
    + good(said({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}))
    + bad(None, code=MISSING)
    + bad([], {}, "Hi", 5)
    + bad([None], [5], ["Hi"], [[USER]], param="messages[0]")
    + bad([USER, {"content": "Hi"}], [USER, {"role": None}], code=MISSING, param="messages[1].role")
    + bad([{"role": 5, "content": "Hi"}], [{"role": ["user"]}], param="messages[0].role")
    + bad([{"role": "user", "content": 5}], [{"role": "user", "content": {}}], param="messages[0].content")
    + bad([USER, {"role": "assistant", "reasoning_content": 5}], param="messages[1].reasoning_content")
    + bad([{"role": "assistant", "content": "Hi", "reasoning_content": 5}], param="messages[0].reasoning_content")
    + bad([{"role": "assistant", "tool_calls": {}}], param="messages[0].tool_calls")
    + bad(said("Hi"), said(None), said(5), param="messages[0].content[0]")
    + bad(said(TEXT, {"text": "Hi"}), said(TEXT, {"type": None}), code=MISSING, param="messages[0].content[1].type")
    + bad(said({"type": 5}), said({"type": ["text"]}), param="messages[0].content[0].type")
    + bad(said({"type": "text"}), code=MISSING, param="messages[0].content[0].text")
    + bad(said({"type": "file", "file": {}}, {"type": "text", "text": 5}), param="messages[0].content[1].text")
    + bad(said({"type": "image_url"}), code=MISSING, param="messages[0].content[0].image_url")
    + bad(said({"type": "image_url", "image_url": "https://a"}), param="messages[0].content[0].image_url")
    + bad(said({"type": "image_url", "image_url": {}}), code=MISSING, param="messages[0].content[0].image_url.url")
    + bad(said({"type": "image_url", "image_url": {"url": 5}}), param="messages[0].content[0].image_url.url"),
    "max_tokens": good(None, 1, 2**31 - 1) + bad(0, -1, 2**31, 10.0, "10", True),
    "max_completion_tokens": good(None, 1, 2**31 - 1) + good(1, max_tokens=5) + bad(0, -1, 2**31, 10.0, "10", True),
    "logprobs": good(None, True, False) + bad(5, 0, "true", 1.0),
    "top_logprobs": good(None, 0)
    + good(0, 1, 20, logprobs=True)
    + good(0, logprobs=False)
    + bad(1, 20)
    + bad(1, logprobs=False)
    + bad(-1, 21, 2.0, "5", True, logprobs=True),
    "response_format": good(None, {"type": "text"}, {"type": "json_object"})
    + good({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}})
    + good({"type": "json_schema", "json_schema": {"name": "a", "description": None, "schema": True}})
    + bad("text", [], 5)
    + bad({}, {"type": None}, code=MISSING, param="response_format.type")
    + bad({"type": 5}, param="response_format.type")
    + bad({"type": "structural_tag"}, {"type": ""}, code=UNSUPPORTED, param="response_format.type")
    + bad({"type": "json_schema"}, code=MISSING, param="response_format.json_schema")
    + bad({"type": "json_schema", "json_schema": {}}, code=MISSING, param="response_format.json_schema.name")
    + bad({"type": "json_schema", "json_schema": {"name": 5}}, param="response_format.json_schema.name")
    + bad(
        {"type": "json_schema", "json_schema": {"name": "a", "description": 5}},
        param="response_format.json_schema.description",
    )
    + bad(
        {"type": "json_schema", "json_schema": {"name": "a", "strict": "no"}},
        param="response_format.json_schema.strict",
    )
    + bad({"type": "json_schema", "json_schema": "a"}, param="response_format.json_schema"),
    "tool_choice": good(None, "none")
    + good("auto", "none", "required", {"type": "function", "function": {"name": "get_weather"}}, tools=[TOOL])
    + bad("auto", "required", {"type": "function", "function": {"name": "get_weather"}})
    + bad("any", "", 5, True, [], {}, {"type": "function"}, {"type": "allowed_tools"}, tools=[TOOL])
    + bad({"type": "function", "function": {"name": ""}}, tools=[TOOL]),
    "tools": good(None, [TOOL], [TOOL, {"type": "web_search"}], ["anything"])
    + bad([], {}, "tools", 5)
    + bad([TOOL, {"type": "function"}], code=MISSING, param="tools[1].function.name")
    + bad([{"type": "function", "function": {"name": ""}}], code=MISSING, param="tools[0].function.name")
    + bad([{"type": "function", "function": {"name": 5}}], code=MISSING, param="tools[0].function.name"),
    "reasoning_effort": good(None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
    + bad("", "extreme", "x" * 10_000, code=UNSUPPORTED)
    + bad(5, True, ["low"]),
}

COMPLETIONS: Cases = SHARED | {
    "prompt": good("Hi", " ", ["Hi"], ["Hi", ""], [0], [1, 2, 3], [[1], [2, 3]], ["a"] * 1024, [2**31 - 1], [5] * 5000)
    + bad(None, code=MISSING)
    + bad("", [], 5, True, {}, ["a"] * 1025, [[1]] * 1025)
    + bad([True], [1.0], [-1], [2**31], [None], [{}], [[]], [[], [1]], param="prompt[0]")
    + bad([1, "a"], ["a", 1], [1, [1]], [[1], 1], [1, True], param="prompt[1]")
    + bad([[1], [2, True]], [[1], [2, "a"]], [[1], [2, -1]], param="prompt[1][1]"),
    "max_tokens": good(None, 1, 2**31 - 1)
    + good(0, echo=True)
    + bad(0)
    + bad(0, echo=False)
    + bad(-1, 2**31, 10.0, "10", True, echo=True),
    "logprobs": good(None, 0, 5, -1, 2**31 - 1) + bad(True, -2, 2**31, 5.0, "5"),
    "echo": good(None, True, False) + bad("true", 1, 0),
    "suffix": good(None, "", "end") + good("end", echo=False) + bad("end", "", echo=True) + bad(5, True, ["end"]),
    "best_of": good(None, 1, 128)
    + good(2, n=2)
    + good(3, n=2)
    + good(1, stream=True)
    + bad(1, n=2)
    + bad(2, stream=True)
    + bad(2, n=2, stream=True)
    + bad(0, -1, 129, 2.0, "2", True),
}

BASE: dict[Endpoint, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [USER]},
    "completions": {"model": "m", "prompt": "Hi"},
}
TABLES: dict[Endpoint, Cases] = {"chat": CHAT, "completions": COMPLETIONS}
LISTED = [
    (endpoint, name, case) for endpoint, table in TABLES.items() for name, cases in table.items() for case in cases
]


def body(endpoint: Endpoint, **fields: Any) -> bytes:
    return json.dumps(BASE[endpoint] | fields).encode()


def test_the_tables_have_every_field_of_both_documents() -> None:
    assert set(CHAT) == set(ChatCompletionRequestBody.__annotations__)
    assert set(COMPLETIONS) == set(CompletionRequestBody.__annotations__)
    for table in TABLES.values():
        for name, cases in table.items():
            assert {type(case) for case in cases} == {Good, Bad}, f"{name} needs accepted and refused values"


@pytest.mark.parametrize(("endpoint", "name", "case"), [entry for entry in LISTED if isinstance(entry[2], Good)])
def test_accepted(endpoint: Endpoint, name: str, case: Good) -> None:
    sent = body(endpoint, **{name: case.value}, **case.beside)
    assert parse(endpoint, sent, requests=REQUESTS).body is sent


@pytest.mark.parametrize(("endpoint", "name", "case"), [entry for entry in LISTED if isinstance(entry[2], Bad)])
def test_refused_with_the_field_in_words_of_our_own(endpoint: Endpoint, name: str, case: Bad) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(endpoint, body(endpoint, **{name: case.value}, **case.beside), requests=REQUESTS)
    param = case.param or name
    message = refused.value.message
    assert (refused.value.code, refused.value.param) == (case.code, param)
    assert message.startswith(param)
    assert message.isascii()
    assert len(message) < 250
    for name_of_ours in ("pydantic", "Input should", "dict", "Message", "constrained", "NoneType"):
        assert name_of_ours not in message


def test_alternatives_that_stumble_over_one_value_are_told_together() -> None:
    with pytest.raises(BadRequest, match=r"prompt\[0\]: expected a string or an integer or a list, got true"):
        parse("completions", body("completions", prompt=[True]), requests=REQUESTS)
    with pytest.raises(BadRequest, match=r"reasoning_content: expected a string, got 5"):
        parse("chat", body("chat", messages=[USER | {"reasoning_content": 5}]), requests=REQUESTS)


def test_of_several_wrong_fields_the_first_is_told() -> None:
    with pytest.raises(BadRequest) as refused:
        parse("chat", body("chat", n=0, messages=[5]), requests=REQUESTS)
    assert refused.value.param == "messages[0]"


@pytest.mark.parametrize(
    ("endpoint", "name"), [("chat", "model"), ("chat", "messages"), ("completions", "model"), ("completions", "prompt")]
)
def test_a_required_field_that_is_absent_is_missing(endpoint: Endpoint, name: str) -> None:
    fields = {key: value for key, value in BASE[endpoint].items() if key != name}
    with pytest.raises(BadRequest) as refused:
        parse(endpoint, json.dumps(fields).encode(), requests=REQUESTS)
    assert (refused.value.code, refused.value.param) == (MISSING, name)


def test_the_documents_own_example_is_a_call_of_the_same_bytes() -> None:
    page = (Path(__file__).parent / "seeds" / "chat-completions.md").read_text()
    document = yaml.safe_load(page.split("````yaml", 1)[1].split("\n", 1)[1].split("````", 1)[0])
    example = document["components"]["schemas"]["ChatCompletionRequestBody"]["example"]
    sent = json.dumps(example, indent=1, ensure_ascii=False).encode()
    call = parse("chat", sent, requests=REQUESTS)
    assert call.body is sent
    assert (call.model, call.output_tokens, call.tool_choice) == (example["model"], 100, "auto")
    assert not call.stream
