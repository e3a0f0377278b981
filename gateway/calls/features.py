"""Call + what a model is served with -> whether it can be served, or the `UnsupportedValue` that says what cannot."""

from collections.abc import Sequence

from gateway.calls.call import Call
from gateway.config import ModelEntry
from gateway.errors import UnsupportedValue

_SURELY = 0.5


def check_features(call: Call, *, tool_choice: Sequence[str], content_parts: Sequence[str]) -> None:
    """Refuse a tool choice or a content part that the model's entry does not list."""
    if call.tool_choice is not None and call.tool_choice not in tool_choice:
        raise UnsupportedValue(
            f"tool_choice {call.tool_choice} is not served for this model; served: {_listed(tool_choice)}.",
            param="tool_choice",
        )
    for part in call.content_parts:
        if part.type not in content_parts:
            raise UnsupportedValue(
                f"Content parts of this type are not served for this model; served: {_listed(content_parts)}.",
                param=f"{part.path}.type",
            )


def fits(call: Call, entry: ModelEntry) -> bool:
    """Whether a model with this entry has what the call asks for, and is not clearly too short for it.

    A prompt's tokens are an estimate, of which half is counted: what is nearer to its context the engine decides.
    """
    try:
        check_features(call, tool_choice=entry.tool_choice, content_parts=entry.content_parts)
    except UnsupportedValue:
        return False
    least = _SURELY * call.input_tokens / call.prompts + (call.output_tokens or 0)
    return entry.max_model_len is None or least <= entry.max_model_len


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
