"""A listener's clients that ask nothing: for tests of how long their connections are kept."""

import asyncio
from typing import Any

from gateway.client.clients import Clients
from gateway.outbox import Outbox


def silent_clients(*, write_timeout_s: float | None = None) -> Clients:
    """Return them without their looks at time limits, which are the test's."""
    clients = Clients(
        _never,
        _never,
        outbox=Outbox(asyncio.get_running_loop()),
        head_timeout_s=1,
        write_timeout_s=write_timeout_s,
        max_field=100,
    )
    clients.abort()
    return clients


def _never(_: object) -> Any:
    raise AssertionError("no request came")
