"""Call + what its model is served with -> nothing, or `UnsupportedValue`."""

from collections.abc import Sequence

from gateway.calls.call import Call
from gateway.errors import UnsupportedValue


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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
