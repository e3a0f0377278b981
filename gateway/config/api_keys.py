"""`auth.api_keys`: keys of clients that have no identity provider, of which only the SHA-256 is known here."""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from gateway.config import yaml_text
from gateway.config.section import Name, Section

# What every key begins with: no JWT does, for its first character would be another.
API_KEY_PREFIX = "sk-"


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("expected printable characters")
    return name


def _digest(value: object) -> str:
    if isinstance(value, str) and re.fullmatch("[0-9A-Fa-f]{64}", value):
        return value.lower()
    if isinstance(value, str) and value.startswith(API_KEY_PREFIX):
        raise ValueError("this is a key itself, which must not stand here; expected its SHA-256, 64 hexadecimal digits")
    raise ValueError("expected a SHA-256: 64 hexadecimal digits, in quotes")


def _moment(value: object) -> float:
    """Return seconds since the epoch. YAML reads dates and times by itself."""
    if isinstance(value, str):
        value = _read(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("expected a day such as 2027-01-31, or a time in UTC such as 2027-01-31T12:00:00Z")
    return value.timestamp()


def _read(text: str) -> date | None:
    with suppress(ValueError):
        return date.fromisoformat(text)
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    return None


def _from_file(value: object, info: ValidationInfo) -> object:
    """Return the list that the file of this path holds; what reads files is in the context, where that matters."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("expected a path")  # noqa: TRY004 pydantic takes ValueErrors
    content: Callable[[Path], bytes] = Path.read_bytes if info.context is None else info.context
    try:
        entries = yaml_text.read(content(Path(value)).decode())
    except yaml_text.NotYaml as error:
        raise ValueError(f"{value} {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{value} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{value} holds no list of keys")  # noqa: TRY004 as above
    return entries


Label = Annotated[Name, AfterValidator(_printable)]
Moment = Annotated[float, BeforeValidator(_moment)]


class ApiKey(Section):
    """One key: whose it is, and the SHA-256 of its text."""

    key: Label
    tenant: Label
    sha256: Annotated[str, BeforeValidator(_digest)]
    plan: Name | None = None
    models: tuple[Name, ...] | None = None
    expires: Moment | None = None


FileOfApiKeys = Annotated[tuple[ApiKey, ...] | None, BeforeValidator(_from_file)]
