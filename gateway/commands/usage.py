"""`gateway usage`: what tenants used, from the ledger in the store that the config names."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click

from gateway.admission.ledger import rows
from gateway.admission.ledger.account import COUNTERS
from gateway.admission.ledger.query import of_operator
from gateway.admission.redis.ledger import RedisLedger
from gateway.admission.store import StoreUnavailable
from gateway.clock import SystemClock
from gateway.commands.command import BAD_CONFIG, FAILED, config_option, fail, load_shared
from gateway.config import file
from gateway.errors import InvalidValue

_FORMATS = {"table": rows.as_table, "csv": rows.as_csv, "json": rows.as_json_lines}


@click.command()
@config_option
@click.option("--tenant", help="Only this one. Default: all.")
@click.option("--since", help="The first day (UTC), such as 2026-11-01. Default: the first of the month.")
@click.option("--until", help="The last day. Default: the month's last.")
@click.option("--group-by", help="Any of day, tenant, key, model, with commas between. Default: day,tenant.")
@click.option("--format", "form", type=click.Choice(list(_FORMATS)), default="table", show_default=True)
def usage(path: Path | None, form: str, **asked: str | None) -> None:
    """Show what tenants used, from the ledger in the config's limits.store."""
    settings = load_shared(path, "the ledger is in the gateway's own memory; ask its /admin/usage instead")
    today = datetime.fromtimestamp(SystemClock().now(), UTC).date()
    try:
        query = of_operator([(name, text) for name, text in asked.items() if text is not None], today=today)
        postings = RedisLedger(settings.limits.store).postings(query.tenant, query.since, query.until)
        groups = asyncio.run(rows.add_up(postings, query.group_by))
    except InvalidValue as error:
        fail(f"--{str(error.param).replace('_', '-')}: {error.message}", BAD_CONFIG)
    except StoreUnavailable as error:
        fail(f"{file.find(path)}: limits.store: the ledger cannot be read: {error.__cause__}", FAILED)
    text = _FORMATS[form](rows.rows(groups, query.group_by), (*query.group_by, *COUNTERS))
    click.echo(text.encode("utf-8", "backslashreplace"), nl=False)
