"""Rules between fields that a schema cannot say: a valid request component -> nothing, or a refusal with its field.

Here are the combinations that engines understand differently or not at all; what depends on an engine's own settings
is left to the engine, whose word is passed on.
"""

from typing import Any

from gateway.calls.call import ToolChoice
from gateway.calls.explain import excerpt
from gateway.errors import InvalidValue, MissingField, UnsupportedValue
from gateway.schemas.chat import ChatCompletionRequestBody, ResponseFormat
from gateway.schemas.completions import CompletionRequestBody

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
RESPONSE_FORMATS = ("text", "json_object", "json_schema")


def check_chat(request: ChatCompletionRequestBody) -> ToolChoice | None:
    """Check a chat; return its tool choice."""
    _check_stream_options(request)
    if request.get("top_logprobs") and not request.get("logprobs"):
        raise InvalidValue("top_logprobs: needs logprobs to be true.", param="top_logprobs")
    effort = request.get("reasoning_effort")
    if effort is not None and effort not in REASONING_EFFORTS:
        raise _unsupported("reasoning_effort", effort, REASONING_EFFORTS)
    if (response_format := request.get("response_format")) is not None:
        _check_response_format(response_format)
    if (tools := request.get("tools")) is not None:
        _check_tools(tools)
    choice = request.get("tool_choice")
    return None if choice is None else _tool_choice(choice, tools)


def check_completion(request: CompletionRequestBody) -> None:
    """Check a completion."""
    _check_stream_options(request)
    echo = request.get("echo")
    if echo and request.get("suffix") is not None:
        raise InvalidValue("suffix: cannot be had together with echo.", param="suffix")
    if request.get("max_tokens") == 0 and not echo:
        raise InvalidValue("max_tokens: expected at least 1, or 0 together with echo.", param="max_tokens")
    best_of, n = request.get("best_of"), request.get("n") or 1
    if best_of is None:
        return
    if best_of < n:
        raise InvalidValue(f"best_of: expected at least n, which is {n}, got {best_of}.", param="best_of")
    if request.get("stream") and best_of > 1:
        raise InvalidValue(
            "best_of: a stream cannot be the best of several; leave stream or best_of out.", param="best_of"
        )


def continuous_usage(options: Any) -> bool:
    """Whether valid `stream_options` ask for running totals of usage, a field of vLLM and SGLang that we rely on."""
    asked = options.get("continuous_usage_stats") if isinstance(options, dict) else None
    if asked is not None and not isinstance(asked, bool):
        path = "stream_options.continuous_usage_stats"
        raise InvalidValue(f"{path}: expected true or false, got {excerpt(asked)}.", param=path)
    return asked is True


def _check_stream_options(request: ChatCompletionRequestBody | CompletionRequestBody) -> None:
    if request.get("stream_options") is not None and not request.get("stream"):
        raise InvalidValue("stream_options: only where stream is true.", param="stream_options")


def _check_response_format(response_format: ResponseFormat) -> None:
    kind = response_format["type"]
    if kind not in RESPONSE_FORMATS:
        raise _unsupported("response_format.type", kind, RESPONSE_FORMATS)
    if kind == "json_schema" and response_format.get("json_schema") is None:
        path = "response_format.json_schema"
        raise MissingField(f"{path} is required where the type is json_schema.", param=path)


def _check_tools(tools: list[Any]) -> None:
    if not tools:
        raise InvalidValue("tools: expected a list that is not empty; leave it out for no tools.", param="tools")
    for index, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == "function" and not _function_name(tool):
            path = f"tools[{index}].function.name"
            raise MissingField(f"{path} is required: a string that is not empty.", param=path)


def _tool_choice(choice: Any, tools: list[Any] | None) -> ToolChoice:
    if choice == "none":
        return "none"
    if tools is None:
        raise InvalidValue("tool_choice: needs tools.", param="tool_choice")
    if choice == "auto":
        return "auto"
    if choice == "required":
        return "required"
    if isinstance(choice, dict) and choice.get("type") == "function" and _function_name(choice):
        return "named"
    expected = 'auto, none, required or {"type": "function", "function": {"name": ...}}'
    raise InvalidValue(f"tool_choice: expected {expected}, got {excerpt(choice)}.", param="tool_choice")


def _function_name(tool: dict[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _unsupported(path: str, value: str, served: tuple[str, ...]) -> UnsupportedValue:
    return UnsupportedValue(f"{path}: expected one of {', '.join(served)}, got {excerpt(value)}.", param=path)
