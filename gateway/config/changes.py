"""Two configs in, the paths of what differs between them out, and which of these a running process cannot take on."""

from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from gateway.config.root import Config

# What is held for as long as a process lives: addresses, and the store with the form of what is kept there.
AT_START = (
    "server.listen",
    "server.workers",
    "server.reuse_port",
    "admin.listen",
    "limits.store",
    "limits.store_timeout",
    "limits.lease",
    "limits.ledger_retention",
    "limits.journal",
    "limits.events",
)


def changes(before: Config, after: Config) -> list[str]:
    """Return the path of every key whose value differs, as the config is written; never a value."""
    return list(_between(before, after, ""))


def need_restart(changed: Iterable[str]) -> list[str]:
    """Return those keys among `changed`, or above them, that are taken on at the start only."""
    paths = list(changed)
    return [key for key in AT_START if any(path == key or path.startswith(f"{key}.") for path in paths)]


def _between(before: object, after: object, path: str) -> Iterator[str]:
    if isinstance(before, BaseModel) and type(before) is type(after):
        names = list(type(before).model_fields)
        pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    elif isinstance(before, dict) and isinstance(after, dict):
        pairs = [(str(name), before.get(name), after.get(name)) for name in before | after]
    else:
        if before != after:
            yield path
        return
    for name, one, other in pairs:
        yield from _between(one, other, f"{path}.{name}" if path else name)
