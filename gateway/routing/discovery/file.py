"""Replicas listed in a file, which is read again and again: so it sees a change however the file was replaced."""

import asyncio
from pathlib import Path

from pydantic import ValidationError

from gateway import background
from gateway.config import FileEntry, ReplicaEntry, yaml_text
from gateway.config.pools import REPLICAS
from gateway.routing.discovery.source import Away, Take

# Ten thousand replicas take a fifth of it.
MAX_BYTES = 2**22


class FileSource:
    """Reads the file in a thread, every `interval`. One that is bad changes nothing; an empty list is believed."""

    def __init__(self, entry: FileEntry) -> None:
        self.longest_pause_s = entry.interval
        self._entry = entry
        self._path = Path(entry.path)
        self._read: tuple[bytes, tuple[ReplicaEntry, ...]] | None = None

    async def follow(self, take: Take) -> None:
        """Tell what the file lists.

        Raises:
            Away: it cannot be read, or is no list of replicas.
        """
        while True:
            take(await background.apart(self._listed))
            await asyncio.sleep(self._entry.interval)

    def _listed(self) -> tuple[ReplicaEntry, ...]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise Away(f"{self._path} cannot be read: {error.strerror}") from error
        if self._read is None or content != self._read[0]:
            self._read = content, listed_in(content, source=str(self._path))
        return self._read[1]


def listed_in(content: bytes, *, source: str) -> tuple[ReplicaEntry, ...]:
    """Return the replicas that the content of a file lists.

    Raises:
        Away: it is too large, not YAML, not a list, or one of its entries is none. It says where, and shows no value.
    """
    if len(content) > MAX_BYTES:
        raise Away(f"{source} is larger than {MAX_BYTES // 2**20} MiB")
    try:
        return REPLICAS.validate_python(yaml_text.read(content.decode()))
    except UnicodeDecodeError as error:
        raise Away(f"{source} is not UTF-8") from error
    except yaml_text.NotYaml as error:
        raise Away(f"{source} {error}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        raise Away(f"{source}{f': {place}' if place else ''}: {first['msg']}") from error
