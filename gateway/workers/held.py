"""What of a gateway's config whoever comes later begins with: what it was read from, and whose labels a scrape has.

One line of JSON, from the worker that goes by it to the supervisor, and from there to the workers that it starts.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from gateway.config.contents import Contents
from gateway.config.file import Loaded


@dataclass(frozen=True, slots=True)
class Held:
    """Files and what they held; the configured tenants, and how many may have a label."""

    files: Contents
    tenants: tuple[str, ...]
    max_tenants: int


NONE = Held({}, (), 0)


def of(loaded: Loaded) -> Held:
    """Return what is held of a config."""
    settings = loaded.settings
    return Held(loaded.contents, tuple(settings.limits.tenants), settings.metrics.max_tenants)


def written(held: Held) -> bytes:
    """Return one line of JSON, without its end."""
    files = {
        str(path): None if content is None else base64.b64encode(content).decode("ascii")
        for path, content in held.files.items()
    }
    return json.dumps([files, held.tenants, held.max_tenants], separators=(",", ":")).encode("ascii")


def read(data: bytes) -> Held:
    """Return what was `written`."""
    files, tenants, max_tenants = json.loads(data)
    contents = {Path(path): None if text is None else base64.b64decode(text) for path, text in files.items()}
    return Held(contents, tuple(tenants), max_tenants)
