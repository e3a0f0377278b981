"""What files hold, each read once: all that is said of a config is of the same content, whoever writes it meanwhile.

With the same contents another process has the same config, whatever has become of the files.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

Contents = Mapping[Path, bytes | None]
"""Files with what is in them; None where one cannot be read."""

Digests = Mapping[Path, str | None]
"""Files with the SHA-256 of what is in them, in hexadecimal digits; None where one cannot be read."""


class Reader:
    """Reads files, and keeps what they hold in `contents`. What is `known` already stands in for what is on disk."""

    def __init__(self, known: Contents) -> None:
        self.contents: dict[Path, bytes | None] = dict(known)

    def read(self, path: Path) -> bytes:
        """Return what is in a file.

        Raises:
            OSError, ValueError: it cannot be read.
        """
        content = self.contents.get(path)
        if content is None:
            self.contents[path] = None
            content = self.contents[path] = path.read_bytes()
        return content


def digests(contents: Contents) -> Digests:
    """Return the digests of these."""
    return {
        path: None if content is None else hashlib.sha256(content).hexdigest() for path, content in contents.items()
    }
