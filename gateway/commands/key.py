"""`gateway key new`: makes an API key, shows it once, and prints the entry of the config that accepts it."""

from typing import Any

import click
import yaml
from pydantic import ValidationError

from gateway import config
from gateway.commands.command import BAD_CONFIG, fail, given
from gateway.identity import api_keys


@click.group()
def key() -> None:
    """Make keys for clients that have no identity provider."""


@key.command("new")
@click.option("--tenant", required=True, help="Whose quota and bill.")
@click.option("--key", required=True, help="The key's stable id: its name in limits, usage and logs, and no secret.")
@click.option("--plan", help="One of limits.plans.")
@click.option("--model", "models", multiple=True, help="A model or glob that it may use; may stand several times.")
@click.option("--expires", help="The day or time (UTC) from which it is refused, such as 2027-01-31.")
def new(models: tuple[str, ...], **options: Any) -> None:
    """Print a new key, and below it the entry for auth.api_keys."""
    secret, digest = api_keys.generate()
    entry = given(options | {"models": list(models) or None, "sha256": digest})
    try:
        config.ApiKey.model_validate(entry)
    except ValidationError as error:
        problem = error.errors()[0]
        name = "model" if problem["loc"][0] == "models" else problem["loc"][0]
        fail(f"--{name}: {problem['msg'].removeprefix('Value error, ')}", BAD_CONFIG)
    click.echo(secret)
    click.echo(
        "\n# The key above is shown this once. What accepts it, for auth.api_keys or the file of auth.api_keys_file:"
    )
    click.echo(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True), nl=False)
