"""The messages of a chat -> which kinds of content part they hold, and how much of the body is not text.

Nothing here refuses a message: the schema does. Malformed messages are passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.calls.call import ContentPart

# The kinds that the schema describes. Others are for the model's entry to allow: `calls/features.py`.
DESCRIBED = frozenset({"text", "image_url"})
_STAND_IN = {"type": "text", "text": ""}


@dataclass(frozen=True, slots=True)
class Content:
    """What the parts of all messages amount to.

    `parts` has the first of each type. `media` counts the parts that are not text, and `media_size` the characters of
    their strings: pictures and sound travel as base64, which says nothing about tokens.
    """

    parts: tuple[ContentPart, ...] = ()
    media: int = 0
    media_size: int = 0


def read_content(messages: Any) -> Content:
    """Look through the content parts of `messages`, whatever it is."""
    first: dict[str, ContentPart] = {}
    media = media_size = 0
    for index, position, part in _parts(messages):
        kind = part["type"]
        if kind not in first:
            first[kind] = ContentPart(kind, f"messages[{index}].content[{position}]")
        if kind != "text":
            media += 1
            media_size += _size_of_strings(part)
    return Content(tuple(first.values()), media, media_size)


def described(body: dict[str, Any]) -> dict[str, Any]:
    """Return `body` with a stand-in for each content part of a kind that the schema does not describe."""
    return {**body, "messages": [_described_message(message) for message in body["messages"]]}


def _parts(messages: Any) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for position, part in enumerate(content):
                if _is_part(part):
                    yield index, position, part


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _size_of_strings(part: dict[str, Any]) -> int:
    objects = (value for value in part.values() if isinstance(value, dict))
    return sum(len(text) for value in objects for text in value.values() if isinstance(text, str))


def _described_message(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = [_STAND_IN if _is_part(part) and part["type"] not in DESCRIBED else part for part in content]
    return {**message, "content": parts}
