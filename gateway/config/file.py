"""Reads config.yaml: bytes on disk in, a `Config` or a `BadConfig` that names every problem out.

The only module that reads the environment, and of it only `GATEWAY_CONFIG` and what the file names by `${…}`.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.config import yaml_text
from gateway.config.root import Config

DEFAULT_PATH = Path("config.yaml")
_UNKNOWN_KEY = "is not a key of this section"
_REFERENCE = re.compile(r"\$\{(?P<file>file:)?(?P<name>[^}]*)\}")


class BadConfig(Exception):
    """The file cannot be used. `problems` has a line for each thing wrong: its path and what was expected."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.problems = problems


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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(str(path), [f"cannot be read: {error}"]) from error
    return parse(text, source=str(path), environment=environment)


def parse(text: str, *, source: str = "config", environment: Mapping[str, str] | None = None) -> Config:
    """Validate the text of a config file; `environment` stands in for the process's own.

    Raises:
        BadConfig: as `load`.
    """
    try:
        tree = yaml_text.read(text)
    except yaml_text.NotYaml as error:
        raise BadConfig(source, [str(error)]) from error
    if not isinstance(tree, dict):
        raise BadConfig(source, ["is empty or not a mapping: expected sections such as auth, models, pools"])
    problems: list[str] = []
    known = os.environ if environment is None else environment  # noqa: TID251 as above
    tree = _resolve(tree, known, "", problems)
    if problems:
        raise BadConfig(source, problems)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise BadConfig(source, [_explain(problem["loc"], problem["msg"]) for problem in error.errors()]) from error


def _resolve(value: object, environment: Mapping[str, str], path: str, problems: list[str]) -> object:
    """Return `value` with `${VAR}` and `${file:/path}` replaced in every string below it."""
    if isinstance(value, dict):
        return {k: _resolve(v, environment, f"{path}.{k}" if path else str(k), problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolve(v, environment, f"{path}[{i}]", problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if match["file"]:
            try:
                return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"{path}: ${{file:{name}}} cannot be read: {error}")
        elif name in environment:
            return environment[name]
        else:
            problems.append(f"{path}: ${{{name}}} is not set in the environment")
        return ""

    return _REFERENCE.sub(replace, value)


def _explain(location: tuple[int | str, ...], message: str) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else "" if step == "[key]" else f".{step}"
    if "[key]" in location:
        message = "expected text as a key; quote it"
    elif message.startswith("Input should be a valid dictionary or instance of"):
        message = "expected a section with keys below it"
    message = message.removeprefix("Value error, ").replace("Extra inputs are not permitted", _UNKNOWN_KEY)
    return f"{path.lstrip('.')}: {message}" if path else message
