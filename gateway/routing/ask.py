"""A GET to a replica beside its calls, for probes and load: as its pool speaks to it, and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from gateway.routing.replica import Replica

# aiohttp's own limit in all loses a cancellation that comes as it passes (3.14.5: its timer is entered twice, and each
# exit takes one back). Then whoever asked would ask for ever, and a gateway that stops would wait for him.
_NO_LIMIT = aiohttp.ClientTimeout(total=None)


@asynccontextmanager
async def ask(
    session: aiohttp.ClientSession, replica: Replica, path: str, *, timeout_s: float
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Give the response inside the block, which has `timeout_s` in all. Redirects are not followed.

    Raises, as the block does: aiohttp.ClientError, OSError, TimeoutError.
    """
    headers = {"Host": replica.authority}
    if replica.authorization:
        headers["Authorization"] = replica.authorization
    asking = session.get(
        replica.url + path,
        headers=headers,
        timeout=_NO_LIMIT,
        allow_redirects=False,
        server_hostname=replica.server_name if replica.tls else None,
    )
    async with asyncio.timeout(timeout_s), asking as response:
        yield response
