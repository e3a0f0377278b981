"""What the engine answers to a call that is wrong: a status and vLLM's error object, in vLLM's words."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

# As much as vLLM reports of a body with many errors, and of each offending value.
MAX_REPORTED = 10
MAX_INPUT_CHARS = 200


class EngineRefusal(Exception):
    """A call that generates nothing."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param


def parameter(message: str, name: str, *, value: int) -> EngineRefusal:
    """Return the refusal of a parameter that is well formed and out of range."""
    return EngineRefusal(400, f"{message} (parameter={name}, value={value})", param=name)


def unknown_model(asked: str, *, served: str) -> EngineRefusal:
    """Return the refusal of a model that this engine does not serve."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return EngineRefusal(404, message, kind="NotFoundError", param="model")


def too_long(max_model_len: int) -> EngineRefusal:
    """Return the refusal of a prompt beyond the context; vLLM stops counting one token behind it."""
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least"
        f" {max_model_len + 1} input tokens, which exceeds this limit even without any output tokens."
        " Please reduce the length of the input prompt."
    )
    return parameter(message, "input_tokens", value=max_model_len + 1)


def wrong_media_type() -> EngineRefusal:
    """Return the refusal of a body that is not declared as JSON."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return EngineRefusal(400, message, kind="Bad Request")


def bad_json(problem: str, position: int) -> EngineRefusal:
    """Return the refusal of a body that is not JSON."""
    detail = {"type": "json_invalid", "loc": (position,), "msg": "JSON decode error", "input": {}}
    return _invalid([{**detail, "ctx": {"error": problem}}])


def bad_body(error: ValidationError) -> EngineRefusal:
    """Return the refusal of a body with missing or mistyped fields."""
    return _invalid(error.errors(include_url=False))


def _invalid(errors: Sequence[Mapping[str, Any]]) -> EngineRefusal:
    details = [
        {**error, "loc": ".".join(["body", *map(str, error["loc"])]), "input": _summary(error["input"])}
        for error in errors
    ]
    lines = "".join(f"\n  {detail}" for detail in details[:MAX_REPORTED])
    label = "error" if len(details) == 1 else "errors"
    message = f"{len(details)} validation {label}:{lines}"
    return EngineRefusal(400, message, kind="Bad Request", param=details[0]["loc"])


def _summary(value: object) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)[:MAX_INPUT_CHARS]
