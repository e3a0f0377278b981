"""`gateway token`: signs a token with the config's development key, for trials on one machine."""

from pathlib import Path

import click

from gateway.clock import SystemClock
from gateway.commands.command import BAD_CONFIG, FAILED, Duration, config_option, fail, load
from gateway.config import file
from gateway.identity import development
from gateway.identity.keys import KeySetUnusable


@click.command()
@config_option
@click.option("--tenant", required=True, help="Whose quota and bill.")
@click.option("--key", required=True, help="The credential's stable id.")
@click.option("--plan", help="The plan that the token claims.")
@click.option("--ttl", type=Duration(), default="1h", show_default=True, help="How long the token is valid.")
def token(path: Path | None, tenant: str, key: str, plan: str | None, ttl: float) -> None:
    """Sign a development token with the config's development key, which is created if it does not exist."""
    settings = load(path)
    if settings.auth.development_key is None:
        fail(
            f"{file.find(path)}: auth.development_key: is not set; set it to a path such as development-key.pem",
            BAD_CONFIG,
        )
    try:
        signing = development.load_or_create(Path(settings.auth.development_key))
    except KeySetUnusable as error:
        fail(str(error), FAILED)
    click.echo(development.sign(signing, tenant=tenant, key_id=key, plan=plan, ttl_s=ttl, now=SystemClock().now()))
