"""What the commands share: the config file that they read, durations as options, and how they end in failure."""

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway.config import Config, file, units

FAILED = 1
BAD_CONFIG = 2

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The config file. Default: $GATEWAY_CONFIG, or config.yaml.",
)


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
    try:
        return file.load(file.find(path))
    except file.BadConfig as error:
        fail(str(error), BAD_CONFIG)


def fail(message: str, code: int) -> NoReturn:
    """End the process."""
    click.echo(message, err=True)
    sys.exit(code)
