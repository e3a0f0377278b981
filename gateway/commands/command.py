"""What the commands share: the config and the store that they read, durations, rows to print, and how they fail."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from gateway.admission.store import StoreUnavailable
from gateway.config import Config, file, units
from gateway.config.contents import Contents
from gateway.errors import InvalidValue, NotFound

FAILED = 1
BAD_CONFIG = 2

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The config file. Default: $GATEWAY_CONFIG, or config.yaml.",
)

format_option = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)

_Result = TypeVar("_Result")
_Row = dict[str, Any]


class Duration(click.ParamType[float]):
    """A duration as the config has it, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it, or fail as options do."""
        try:
            return units.seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def load(path: Path | None) -> Config:
    """Return the config, or end the process with every problem that it has."""
    return read(path).settings


def read(path: Path | None, *, workers: str | None = None, known: Contents | None = None) -> file.Loaded:
    """Return the config with what it was read from, or end the process with every problem that it has.

    `workers` stands in for its `server.workers`, and what is `known` for what is in files.
    """
    try:
        return file.read(file.find(path), workers=workers, known=known)
    except file.BadConfig as error:
        fail(str(error), BAD_CONFIG)


def fail(message: str, code: int) -> NoReturn:
    """End the process."""
    click.echo(message, err=True)
    sys.exit(code)


def load_shared(path: Path | None, otherwise: str) -> Config:
    """Return the config, whose store others can read too, or end the process saying what to do `otherwise`."""
    settings = load(path)
    if settings.limits.store == "memory":
        fail(f"{file.find(path)}: limits.store: {otherwise}", BAD_CONFIG)
    return settings


def at_store(path: Path | None, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what `work` at the config's store comes to, or end the process with what is wrong."""
    try:
        return asyncio.run(work)
    except InvalidValue as error:
        option = "" if error.param is None else f"--{error.param.replace('_', '-')}: "
        fail(f"{option}{error.message}", BAD_CONFIG)
    except NotFound as error:
        fail(error.message, FAILED)
    except StoreUnavailable as error:
        fail(f"{file.find(path)}: limits.store: it does not answer: {error.__cause__}", FAILED)


def given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in asked.items() if value is not None}


def show_rows(
    found: Sequence[_Row], form: str, header: Sequence[str], cells: Callable[[_Row], Sequence[object]]
) -> None:
    """Print rows: as JSON, an object a line; or the `cells` of each as a table."""
    if form == "json":
        _print("".join(f"{json.dumps(row)}\n" for row in found))
    else:
        show_table(header, [cells(row) for row in found])


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows of cells under their header."""
    lines = [list(header), *[[_printable(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(one, widths, strict=True)] for one in lines]
    _print("".join("  ".join(one).rstrip() + "\n" for one in padded))


def show_line(said: str) -> None:
    """Print one line."""
    _print(f"{_printable(said)}\n")


def _print(text: str) -> None:
    click.echo(text.encode("utf-8", "backslashreplace"), nl=False)


def _printable(cell: object) -> str:
    text = str(cell).lower() if isinstance(cell, bool) else str(cell)
    return text if text.isprintable() else ascii(text)[1:-1]
