"""Bytes to a Call: what it says of the body, and that nothing but a refusal ever comes instead."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway import config
from gateway.calls.call import Call, ContentPart, Endpoint
from gateway.calls.estimate import TOKENS_PER_MEDIA, Estimate
from gateway.calls.features import check_features
from gateway.calls.parse import parse
from gateway.errors import BadRequest, InvalidJson, InvalidValue, UnsupportedValue
from gateway.schemas.chat import ChatCompletionRequestBody
from gateway.schemas.completions import CompletionRequestBody

REQUESTS = config.Requests()
ENDPOINTS: tuple[Endpoint, ...] = ("chat", "completions")
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> Call:
    return parse("chat", chat_body(**fields), requests=REQUESTS)


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields).encode()


def completion(**fields: Any) -> Call:
    return parse("completions", json.dumps({"model": "m", "prompt": "Hi"} | fields).encode(), requests=REQUESTS)


def parts(*kinds: str) -> list[dict[str, Any]]:
    bodies = {"text": "Hi", "image_url": {"url": "https://a"}}
    return [{"role": "user", "content": [{"type": kind, kind: bodies.get(kind, {})} for kind in kinds]}]


def test_a_plain_call() -> None:
    body = chat_body()
    assert parse("chat", body, requests=REQUESTS) == Call(
        endpoint="chat",
        model="m",
        body=body,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        input_tokens=len(body) // 4,
        text_bytes=len(body),
        output_tokens=None,
    )


def test_null_is_absent() -> None:
    optional = (
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "temperature",
        "tools",
        "tool_choice",
        "stop",
        "priority",
    )
    absent, null = chat(), chat(**dict.fromkeys(optional))
    assert (null.stream, null.output_tokens, null.choices, null.tool_choice) == (
        absent.stream,
        absent.output_tokens,
        absent.choices,
        absent.tool_choice,
    )


@pytest.mark.parametrize(
    ("options", "include_usage", "continuous_usage"),
    [
        (None, False, False),
        ({"include_usage": False}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"include_usage": False, "continuous_usage_stats": True}, False, True),
        ({"include_usage": True, "continuous_usage_stats": False}, True, False),
    ],
)
def test_what_the_client_asked_of_the_stream_is_kept(
    options: dict[str, bool] | None, include_usage: object, continuous_usage: object
) -> None:
    for call in (chat(stream=True, stream_options=options), completion(stream=True, stream_options=options)):
        assert (call.stream, call.include_usage, call.continuous_usage) == (True, include_usage, continuous_usage)


def test_the_largest_declared_output_counts() -> None:
    assert chat(max_tokens=10).output_tokens == 10
    assert chat(max_completion_tokens=10).output_tokens == 10
    assert chat(max_tokens=10, max_completion_tokens=20).output_tokens == 20
    assert chat(max_tokens=20, max_completion_tokens=10).output_tokens == 20
    assert completion(max_tokens=0, echo=True).output_tokens == 0


@pytest.mark.parametrize(
    ("fields", "prompts", "choices", "generations"),
    [
        ({}, 1, 1, 1),
        ({"n": 3}, 1, 3, 3),
        ({"n": 2, "best_of": 5}, 1, 2, 5),
        ({"prompt": ["a", "b"], "n": 2, "best_of": 5}, 2, 4, 10),
        ({"prompt": [1, 2, 3]}, 1, 1, 1),
        ({"prompt": [[1], [2, 3]], "n": 2}, 2, 4, 4),
    ],
)
def test_outputs_multiply(fields: dict[str, Any], prompts: int, choices: int, generations: int) -> None:
    call = completion(**fields)
    assert (call.prompts, call.choices, call.generations) == (prompts, choices, generations)


def test_token_ids_are_counted_and_text_is_estimated() -> None:
    assert completion(prompt=list(range(100_000, 100_500))).input_tokens == 500
    assert completion(prompt=[[1] * 7, [2] * 5]).input_tokens == 12
    assert 1000 <= completion(prompt="word" * 1000).input_tokens <= 1050
    assert 1000 <= completion(prompt=["word" * 500, "word" * 500]).input_tokens <= 1050
    assert 1000 <= chat(messages=[{"role": "user", "content": "word" * 1000}]).input_tokens <= 1050


def test_text_is_estimated_by_what_its_model_has_learned_and_its_size_is_kept_to_learn_from() -> None:
    learned = Estimate()
    learned.bytes_per_token = 2.5
    bodies: dict[Endpoint, bytes] = {"chat": chat_body(), "completions": b'{"model":"m","prompt":"Hi"}'}
    for endpoint, body in bodies.items():
        call = parse(endpoint, body, requests=REQUESTS, estimates={"m": learned, "other": Estimate()})
        assert (call.input_tokens, call.text_bytes) == (int(len(body) / 2.5), len(body))
    ids = parse("completions", b'{"model":"m","prompt":[1,2,3]}', requests=REQUESTS, estimates={"m": learned})
    assert (ids.input_tokens, ids.text_bytes) == (3, 0)


def test_media_count_what_the_model_says_of_their_kind_and_teach_nothing() -> None:
    estimates = {"m": Estimate({"image_url": 7, "video_url": 50_000})}
    body = chat_body(messages=parts("text", "image_url", "image_url", "video_url", "file"))
    call = parse("chat", body, requests=REQUESTS, estimates=estimates)
    assert call.input_tokens == (len(body) - 2 * len("https://a")) // 4 + 7 + 7 + 50_000 + TOKENS_PER_MEDIA
    assert call.text_bytes == 0


def test_pictures_count_as_pictures_however_heavy() -> None:
    base64 = "A" * 1_000_000
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64}"}}
    sound = {"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}
    text = {"type": "text", "text": "word" * 1000}
    call = chat(messages=[{"role": "user", "content": [picture, text]}, {"role": "user", "content": [sound]}])
    assert 0 <= call.input_tokens - 2 * TOKENS_PER_MEDIA - 1000 <= 150


def test_the_first_part_of_each_kind_is_kept_with_its_place() -> None:
    messages = [{"role": "system", "content": "Hi"}, *parts("text", "image_url", "text"), *parts("file", "text")]
    assert chat(messages=messages).content_parts == (
        ContentPart("text", "messages[1].content[0]"),
        ContentPart("image_url", "messages[1].content[1]"),
        ContentPart("file", "messages[2].content[0]"),
    )


@pytest.mark.parametrize(
    ("choice", "kind"),
    [("auto", "auto"), ("none", "none"), ("required", "required"), (TOOL, "named"), (None, None)],
)
def test_tool_choice_is_held_against_what_the_model_is_served_with(choice: object, kind: str | None) -> None:
    call = chat(tools=[TOOL], tool_choice=choice)
    assert call.tool_choice == kind
    check_features(call, tool_choice=[] if kind is None else [kind], content_parts=[])
    others = [other for other in ("auto", "none", "required", "named") if other != kind]
    if kind is not None:
        with pytest.raises(UnsupportedValue) as refused:
            check_features(call, tool_choice=others, content_parts=[])
        assert refused.value.param == "tool_choice"


def test_content_parts_are_held_against_what_the_model_is_served_with() -> None:
    call = chat(messages=[*parts("text"), *parts("text", "input_audio")])
    check_features(call, tool_choice=[], content_parts=["text", "input_audio"])
    with pytest.raises(UnsupportedValue) as refused:
        check_features(call, tool_choice=[], content_parts=["text", "image_url"])
    assert refused.value.param == "messages[1].content[1].type"
    check_features(chat(), tool_choice=[], content_parts=[])


@pytest.mark.parametrize("name", config.BLOCKED_FIELDS)
def test_a_blocked_field_is_refused_at_the_top_and_nowhere_else(name: str) -> None:
    for call in (chat, completion):
        with pytest.raises(UnsupportedValue) as refused:
            call(**{name: 0})
        assert refused.value.param == name
        call(metadata={name: 1}, **{name: None})


def test_the_operator_decides_what_is_blocked() -> None:
    parse("chat", chat_body(priority=1), requests=config.Requests(blocked_fields=()))
    with pytest.raises(UnsupportedValue):
        parse("chat", chat_body(top_k=1), requests=config.Requests(blocked_fields=("top_k",)))


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1, "cache_salt": "s", "user": "u", "service_tier": "auto"},
        {"guided_json": {"type": "object"}, "chat_template_kwargs": {"enable_thinking": False}},
        {"metadata": {"a": {"b": [1, {"c": None}]}}, "a_later_field": [[[0.1000000000000000055]]]},
        {"functions": [{"name": "f"}], "function_call": "auto"},
        {"parallel_tool_calls": True, "tools": [TOOL]},
        {"big": 123456789012345678901234567890},
    ],
)
def test_fields_that_the_documents_do_not_know_are_let_through(fields: dict[str, Any]) -> None:
    assert json.loads(chat(**fields).body).items() >= fields.items()
    assert json.loads(completion(**fields).body).items() >= fields.items()


@pytest.mark.parametrize("number", [b"1e400", b"-1E+999", b"9" * 400 + b".5"])
def test_a_number_beyond_every_double_is_refused_where_a_field_has_a_range_and_goes_on_where_none_is_known(
    number: bytes,
) -> None:
    def body(field: bytes) -> bytes:
        return b'{"model":"m","messages":[{"role":"user"}],"prompt":"Hi",%b}' % (field % number)

    for endpoint in ENDPOINTS:
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "n", "max_tokens", "seed"):
            with pytest.raises(InvalidValue, match=r"expected .*, got -?Infinity") as refused:
                parse(endpoint, body(b'"%b":%%b' % name.encode()), requests=REQUESTS)
            assert refused.value.param == name
        with pytest.raises(InvalidValue) as refused:
            parse(endpoint, body(b'"logit_bias":{"5":%b}'), requests=REQUESTS)
        assert refused.value.param == "logit_bias"
        unknown = body(b'"metadata":[{"later":%b}]')
        assert parse(endpoint, unknown, requests=REQUESTS).body is unknown


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"5", b"true", b'[{"model":"m"}]'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    for endpoint in ENDPOINTS:
        with pytest.raises(InvalidValue, match="JSON object"):
            parse(endpoint, body, requests=REQUESTS)


MANY = 50_000


@pytest.mark.parametrize(
    ("component", "fields"),
    [
        (ChatCompletionRequestBody, {"messages": [5] * MANY}),
        (ChatCompletionRequestBody, {"messages": [{"role": "user", "content": [5] * MANY}]}),
        (ChatCompletionRequestBody, {"logit_bias": dict.fromkeys(map(str, range(MANY)), "x")}),
        (ChatCompletionRequestBody, {"stop": [5] * MANY}),
        (CompletionRequestBody, {"prompt": [True] * MANY}),
        (CompletionRequestBody, {"prompt": [[True]] * MANY}),
        (CompletionRequestBody, {"prompt": [[True] * MANY]}),
    ],
    ids=["messages", "parts", "logit_bias", "stop", "ids", "prompts", "ids of a prompt"],
)
def test_very_many_faults_are_not_gathered(component: type[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(component).validate_python(json.loads(chat_body(**{"prompt": "Hi"} | fields)))
    assert refused.value.error_count() <= 4  # one for each alternative


def test_the_depth_limit_is_the_operators() -> None:
    body = chat_body(metadata=[[[]]])
    parse("chat", body, requests=config.Requests(max_depth=4))
    with pytest.raises(InvalidJson, match="more than 3 levels"):
        parse("chat", body, requests=config.Requests(max_depth=3))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "tool"]) | JSON,
            "content": st.text(max_size=5)
            | st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["text", "image_url", "file"]) | JSON},
                    optional={"text": JSON, "image_url": JSON},
                )
                | JSON,
                max_size=3,
            )
            | JSON,
            "tool_calls": JSON,
        },
    )
    | JSON,
    max_size=3,
)
FIELDS = sorted(
    {*ChatCompletionRequestBody.__annotations__, *CompletionRequestBody.__annotations__, "priority", "unknown"}
    - {"model", "messages", "prompt"}
)
BODIES = st.builds(
    lambda required, optional: required | optional,
    st.fixed_dictionaries(
        {
            "model": st.text(min_size=1, max_size=5) | JSON,
            "messages": MESSAGES | JSON,
            "prompt": st.lists(st.integers(-1, 2**31) | st.lists(JSON, max_size=2), max_size=3) | JSON,
        }
    ),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
)


def attempt(endpoint: Endpoint, body: bytes) -> Call | BadRequest:
    try:
        return parse(endpoint, body, requests=REQUESTS)
    except BadRequest as refusal:
        return refusal


def check(endpoint: Endpoint, body: bytes) -> None:
    answer = attempt(endpoint, body)
    if isinstance(answer, BadRequest):
        assert answer.message.isascii()
        assert json.loads(answer.body())["error"]["code"] == answer.code
    else:
        assert answer.body is body
        assert answer.input_tokens >= 1
        assert answer.generations >= answer.choices >= answer.prompts >= 1


@given(st.sampled_from(ENDPOINTS), st.binary(max_size=200))
def test_any_bytes_are_a_call_or_a_refusal(endpoint: Endpoint, body: bytes) -> None:
    check(endpoint, body)


@given(st.sampled_from(ENDPOINTS), BODIES)
def test_any_fields_are_a_call_or_a_refusal(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    check(endpoint, json.dumps(fields).encode())


@given(st.sampled_from(ENDPOINTS), st.data())
def test_a_valid_body_with_bytes_changed_is_a_call_or_a_refusal(endpoint: Endpoint, data: st.DataObject) -> None:
    body = bytearray(chat_body(prompt="Hi", stream=True, stream_options={"include_usage": True}, tools=[TOOL], n=2))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check(endpoint, bytes(body))
