"""`gateway status`: how a running gateway does, as its operator listener says: what its page shows, in a terminal."""

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gateway.admin.tables import tables
from gateway.commands.command import (
    BAD_CONFIG,
    FAILED,
    config_option,
    fail,
    format_option,
    show_line,
    show_table,
)
from gateway.config import file

# The slowest worker is waited for, and then some.
_WITHIN_S = 10.0


@click.command()
@config_option
@click.option("--at", metavar="HOST:PORT", help="The operator listener to ask. Default: the config's admin.listen.")
@format_option
def status(path: Path | None, form: str, at: str | None) -> None:
    """Show how a running gateway does: what is amiss, its pools, and calls that did not end well."""
    told = _asked(at or _listener(path))
    if form == "json":
        show_line(json.dumps(told))
        return
    show_line(f"Gateway {told['version']}: {told['status'].replace('_', ' ')}, as of {told['at']}")
    for said in told["trouble"]:
        show_line(f"  {said}")
    for table in tables(told):
        show_line("")
        show_line(table.title)
        for said in table.said:
            show_line(f"  {said}")
        if table.rows:
            show_table(table.header, table.rows)


def _listener(path: Path | None) -> str:
    try:
        return str(file.read(file.find(path)).settings.admin.listen)
    except file.BadConfig as error:
        fail(
            f"{error}\nA gateway that runs goes by the config before; name its operator listener: --at HOST:PORT",
            BAD_CONFIG,
        )


def _asked(at: str) -> dict[str, Any]:
    """Return what the listener says, or end the process with why it does not."""
    try:
        where = urlsplit(f"//{at}")
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_WITHIN_S)
    except ValueError:
        fail(f"--at: expected host:port, such as 127.0.0.1:9090, not {at!a}", BAD_CONFIG)
    try:
        connection.request("GET", "/admin/status")
        told = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException) as error:
        fail(f"{at}: no gateway answers there: {str(error) or type(error).__name__}", FAILED)
    except ValueError:
        told = None
    finally:
        connection.close()
    if not isinstance(told, dict) or told.get("object") != "status":
        fail(f"{at}: what answers there is no operator listener of a gateway", FAILED)
    return told
