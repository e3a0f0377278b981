"""Reads config.yaml: bytes on disk in, a `Config` or a `BadConfig` that names every problem out.

The only module that reads the environment, and of it only `GATEWAY_CONFIG` and what the file names by `${…}`.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config import contents, yaml_text
from gateway.config.contents import Contents, Digests, Reader
from gateway.config.root import Config

DEFAULT_PATH = Path("config.yaml")
# In words of config.yaml what pydantic says in those of Python.
_PLAINLY = {
    "extra_forbidden": "is not a key of this section",
    "model_type": "expected a section with keys below it",
    "dict_type": "expected a section with keys below it",
    "tuple_type": "expected a list",
    "too_short": "expected at least one entry",
    "missing": "is missing",
}
# What stands under these keys, where it has not the form that it must have.
_FORMS = {
    "url": "expected http(s)://host or http(s)://host:port, perhaps with a path, without user, query or #",
    "path": "expected a path from /, without blanks",
}
_REFERENCE = re.compile(r"\$\{(?P<file>file:)?(?P<name>[^}]*)\}")


class BadConfig(Exception):
    """The file cannot be used. `problems` has a line for each thing wrong: its path and what was expected.

    `files` are those that it was read from, where that is known.
    """

    def __init__(self, source: str, problems: list[str], files: Digests | None = None) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.problems = problems
        self.files = files or {}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config that was read from files with these `contents`: its own, first, and others that it names for a part.

    `workers` stood in for what the file says of them, where it is not None.
    """

    settings: Config
    contents: Contents
    workers: str | None = None

    @property
    def files(self) -> Digests:
        """The digests of what it was read from."""
        return contents.digests(self.contents)


def find(path: Path | None) -> Path:
    """Return the file to read: `path` if given, else $GATEWAY_CONFIG, else config.yaml."""
    if path is not None:
        return path
    named = os.environ.get("GATEWAY_CONFIG")  # noqa: TID251 this is the one reader of the environment
    return Path(named) if named else DEFAULT_PATH


def load(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read and validate `path`.

    Raises:
        BadConfig: the file is unreadable, is not YAML, names what does not exist, or breaks a rule.
    """
    return read(path, environment).settings


def read(
    path: Path,
    environment: Mapping[str, str] | None = None,
    *,
    workers: str | None = None,
    known: Contents | None = None,
) -> Loaded:
    """Read and validate `path`, and say what it was read from; `workers` stands in for its `server.workers`.

    Of files that are `known` it is not looked what is in them now.

    Raises:
        BadConfig: as `load`.
    """
    reader = Reader(known or {})
    try:
        text = reader.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(str(path), [f"cannot be read: {error}"], contents.digests(reader.contents)) from error
    try:
        tree = _resolved(_tree(text, source=str(path)), source=str(path), environment=environment, reader=reader)
        settings = _validated(_with_workers(tree, workers), source=str(path), reader=reader)
    except BadConfig as error:
        error.files = contents.digests(reader.contents)
        raise
    return Loaded(settings, reader.contents, workers)


def parse(text: str, *, source: str = "config", environment: Mapping[str, str] | None = None) -> Config:
    """Validate the text of a config file; `environment` stands in for the process's own.

    Raises:
        BadConfig: as `load`.
    """
    reader = Reader({})
    tree = _resolved(_tree(text, source=source), source=source, environment=environment, reader=reader)
    return _validated(tree, source=source, reader=reader)


def digests(paths: Iterable[Path]) -> Digests:
    """Return what is in these files now."""
    reader = Reader({})
    for path in paths:
        with suppress(OSError, ValueError):  # no file's name has a NUL
            reader.read(path)
    return contents.digests(reader.contents)


def _tree(text: str, *, source: str) -> dict[str, object]:
    try:
        tree = yaml_text.read(text)
    except yaml_text.NotYaml as error:
        raise BadConfig(source, [str(error)]) from error
    if not isinstance(tree, dict):
        raise BadConfig(source, ["is empty or not a mapping: expected sections such as auth, models, pools"])
    return tree


def _resolved(
    tree: dict[str, object], *, source: str, environment: Mapping[str, str] | None, reader: Reader
) -> dict[str, object]:
    problems: list[str] = []
    known = os.environ if environment is None else environment  # noqa: TID251 this is the one reader of the environment
    resolved = {name: _resolve(value, known, reader, str(name), problems) for name, value in tree.items()}
    if problems:
        raise BadConfig(source, problems)
    return resolved


def _with_workers(tree: dict[str, object], workers: str | None) -> dict[str, object]:
    server = tree.get("server", {})
    if workers is None or not isinstance(server, dict):
        return tree
    return tree | {"server": server | {"workers": int(workers) if workers.isdecimal() else workers}}


def _validated(tree: dict[str, object], *, source: str, reader: Reader) -> Config:
    try:
        return Config.model_validate(tree, context=reader.read)
    except ValidationError as error:
        problems = error.errors()
        told = [_explain(one) for one in problems if one["type"] != "too_short" or not _within(one, problems)]
        raise BadConfig(source, told) from error


def _resolve(value: object, environment: Mapping[str, str], reader: Reader, path: str, problems: list[str]) -> object:
    """Return `value` with `${VAR}` and `${file:/path}` replaced in every string below it."""
    if isinstance(value, dict):
        return {
            k: _resolve(v, environment, reader, f"{path}.{k}" if path else str(k), problems) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_resolve(v, environment, reader, f"{path}[{i}]", problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if match["file"]:
            try:
                return reader.read(Path(name)).decode().rstrip("\r\n")
            except (OSError, ValueError) as error:
                problems.append(f"{path}: ${{file:{name}}} cannot be read: {error}")
        elif name in environment:
            return environment[name]
        else:
            problems.append(f"{path}: ${{{name}}} is not set in the environment")
        return ""

    return _REFERENCE.sub(replace, value)


def _within(one: ErrorDetails, problems: list[ErrorDetails]) -> bool:
    """Whether something in a list is wrong, which is why it counts as too short."""
    return any(other is not one and other["loc"][: len(one["loc"])] == one["loc"] for other in problems)


def _explain(problem: ErrorDetails) -> str:
    path = ""
    for step in problem["loc"]:
        path += f"[{step}]" if isinstance(step, int) else "" if step == "[key]" else f".{step}"
    message = _PLAINLY.get(problem["type"], problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        message = _FORMS.get(path.rpartition(".")[2], message)
    if "[key]" in problem["loc"]:
        message = "expected text as a key; quote it"
    return f"{path.lstrip('.')}: {message}" if path else message
