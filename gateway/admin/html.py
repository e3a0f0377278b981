"""Text in, HTML that is inert out. Only what is made here is HTML, and mypy says so: a plain string is text.

It is well-formed XML, too. What cannot be printed (control characters, what turns the direction of text) is spelt out.
"""

from collections.abc import Iterable
from html import escape
from typing import NewType

Html = NewType("Html", str)

# Names have 256 characters at most; what is longer is a message with many parts.
_LONGEST = 600


def text(value: object) -> Html:
    """Return what is to be read."""
    return Html(escape(printable(value)))


def printable(value: object) -> str:
    """Return it in one line of characters that show, and not too long."""
    said = str(value)
    said = said if said.isprintable() else ascii(said)[1:-1]
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def element(name: str, *inside: Html, **attributes: str) -> Html:
    """Return an element; `class_` is its class."""
    said = "".join(f' {attribute.rstrip("_")}="{escape(value)}"' for attribute, value in attributes.items())
    return Html(f"<{name}{said}>{''.join(inside)}</{name}>")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Return one after the other."""
    return Html(between.join(parts))
