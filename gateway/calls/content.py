"""The messages of a chat -> which kinds of content part they hold, and how much of the body is not text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.calls.call import ContentPart

# The kinds that the schema describes. Others are for the model's entry to allow: `calls/features.py`.
DESCRIBED = frozenset({"text", "image_url"})
_STAND_IN = {"type": "text", "text": ""}


class Content(NamedTuple):
    """What the parts of all messages amount to.

    `parts` has the first of each type. `media` has the type of each part that is not text, and `media_size` the
    characters of their strings: pictures and sound travel as base64, which says nothing about tokens.
    """

    parts: tuple[ContentPart, ...] = ()
    media: Sequence[str] = ()
    media_size: int = 0


TEXT = Content()


def read_content(messages: Sequence[dict[str, Any]]) -> Content:
    """Look through the content parts of valid messages, as the client wrote them."""
    in_parts = [index for index, message in enumerate(messages) if isinstance(message.get("content"), list)]
    return _read_parts(messages, in_parts) if in_parts else TEXT


def described(body: dict[str, Any]) -> dict[str, Any]:
    """Return `body`, valid or not, with a stand-in for each content part that the schema does not describe."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    return {**body, "messages": [_described_message(message) for message in messages]}


def _read_parts(messages: Sequence[dict[str, Any]], in_parts: Sequence[int]) -> Content:
    first: dict[str, ContentPart] = {}
    media: list[str] = []
    media_size = 0
    for index in in_parts:
        for position, part in enumerate(messages[index]["content"]):
            kind = part["type"]
            if kind not in first:
                first[kind] = ContentPart(kind, f"messages[{index}].content[{position}]")
            if kind != "text":
                media.append(kind)
                media_size += _size_of_strings(part)
    return Content(tuple(first.values()), media, media_size)


def _size_of_strings(part: dict[str, Any]) -> int:
    objects = (value for value in part.values() if isinstance(value, dict))
    return sum(len(text) for value in objects for text in value.values() if isinstance(text, str))


def _described_message(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_described_part(part) for part in content]}


def _described_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    return _STAND_IN if isinstance(kind, str) and kind not in DESCRIBED else part
