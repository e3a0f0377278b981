"""A request body in, a `Job` or an `EngineRefusal` out: what is to be generated, checked in vLLM's order.

Unknown fields are ignored, as vLLM does.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from gateway.engine import refusals, tokenizer

Endpoint = Literal["chat", "completions"]

# What is generated when the body sets no maximum: OpenAI's 16 for completions; a chat ends of itself after this much.
COMPLETION_TOKENS = 16
CHAT_TOKENS = 64
# What a chat template puts around each message, and a picture's share of the prompt.
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, its length in tokens, and how many tokens each of its choices gets."""

    text: str
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True)
class Job:
    """What one call asks for. `limit_reason` is the finish reason of a choice that reached its prompt's limit."""

    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    n: int
    limit_reason: Literal["length", "stop"]
    stop: tuple[str, ...]
    seed: int
    echo: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


class _StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(BaseModel):
    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class _ChatBody(_Body):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    n: int | None = 1


class _CompletionsBody(_Body):
    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool | None = False
    n: int = 1


def parse(body: bytes, *, endpoint: Endpoint, model: str, max_model_len: int) -> Job:
    """Return the job of a body. Raises `EngineRefusal`."""
    asked = _read(body, endpoint)
    options = asked.stream_options or _StreamOptions()
    if asked.stream_options and asked.stream_options.model_fields_set and not asked.stream:
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options, value=None)"
        raise refusals.EngineRefusal(400, message, param="stream_options")
    if asked.model and asked.model != model:
        raise refusals.unknown_model(asked.model, served=model)
    maximum = _maximum(asked)
    _check_counts(n=asked.n, maximum=maximum, max_model_len=max_model_len)
    texts = _conversation(asked.messages) if isinstance(asked, _ChatBody) else _texts(asked.prompt)
    include_usage = bool(asked.stream and options.include_usage)
    return Job(
        endpoint=endpoint,
        prompts=tuple(_fitted(text, tokens, maximum=maximum, max_model_len=max_model_len) for text, tokens in texts),
        n=asked.n or 1,
        limit_reason="stop" if maximum is None else "length",
        stop=tuple(filter(None, [asked.stop] if isinstance(asked.stop, str) else asked.stop or ())),
        seed=asked.seed or 0,
        echo=isinstance(asked, _CompletionsBody) and bool(asked.echo),
        stream=bool(asked.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.continuous_usage_stats),
    )


def _read(body: bytes, endpoint: Endpoint) -> _ChatBody | _CompletionsBody:
    try:
        document = json.loads(body)
    except json.JSONDecodeError as error:
        raise refusals.bad_json(error.msg, error.pos) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise refusals.EngineRefusal(400, "There was an error parsing the body", kind="Bad Request") from error
    try:
        return (_ChatBody if endpoint == "chat" else _CompletionsBody).model_validate(document)
    except ValidationError as error:
        raise refusals.bad_body(error) from error


def _maximum(asked: _ChatBody | _CompletionsBody) -> int | None:
    if isinstance(asked, _ChatBody):
        return asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    maximum = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    return 1 if asked.echo and maximum == 0 else maximum  # with echo, vLLM takes 0 and generates one token all the same


def _check_counts(*, n: int | None, maximum: int | None, max_model_len: int) -> None:
    if n is not None and n < 1:
        raise refusals.parameter(f"n must be at least 1, got {n}.", "n", value=n)
    if maximum is not None and maximum < 1:
        raise refusals.parameter(f"max_tokens must be at least 1, got {maximum}.", "max_tokens", value=maximum)
    if maximum is not None and maximum > max_model_len:
        message = f"max_tokens={maximum} cannot be greater than max_model_len={max_model_len}."
        raise refusals.parameter(f"{message} Please request fewer output tokens.", "max_tokens", value=maximum)


def _conversation(messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the text of a conversation and its length, as the only prompt there is."""
    if not messages:
        message = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise refusals.EngineRefusal(400, message)
    parts = [part for message in messages for part in _parts(message.get("content"))]
    calls = [json.dumps(message["tool_calls"]) for message in messages if message.get("tool_calls")]
    text = "\n".join([str(part["text"]) for part in parts if "text" in part] + calls)
    images = sum("image_url" in part for part in parts)
    return [(text, tokenizer.count(text) + len(messages) * MESSAGE_TOKENS + images * IMAGE_TOKENS)]


def _parts(content: object) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return [part for part in content if isinstance(part, dict)]
    return [{"text": content}] if isinstance(content, str) else []


def _texts(prompt: str | list[int] | list[str] | list[list[int]]) -> list[tuple[str, int]]:
    """Return the text and length of each prompt in the body's `prompt`."""
    if not prompt:
        message = "Either prompt or prompt_embeds must be provided and non-empty."
        raise refusals.EngineRefusal(400, message, param="prompt")
    if isinstance(prompt, str):
        return [(prompt, tokenizer.count(prompt))]
    numbers = [item for item in prompt if isinstance(item, int)]
    if numbers:
        return [(tokenizer.decode(numbers), len(numbers))]
    return [
        (item, tokenizer.count(item)) if isinstance(item, str) else (tokenizer.decode(item), len(item))
        for item in prompt
        if not isinstance(item, int)
    ]


def _fitted(text: str, tokens: int, *, maximum: int | None, max_model_len: int) -> Prompt:
    """Return the prompt with the room that the context leaves for its answer."""
    room = max_model_len - tokens
    if room < 1:
        raise refusals.too_long(max_model_len)
    return Prompt(text=text, tokens=tokens, limit=min(CHAT_TOKENS if maximum is None else maximum, room))
