"""A GET to a replica beside its calls, for probes and load: as its pool speaks to it, and nowhere else."""

from contextlib import AbstractAsyncContextManager

import aiohttp

from gateway.routing.replica import Replica


def ask(
    session: aiohttp.ClientSession, replica: Replica, path: str, *, timeout_s: float
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Return what gives the response inside the block. Redirects are not followed.

    Raises, as the block does: aiohttp.ClientError, OSError, TimeoutError.
    """
    headers = {"Host": replica.authority}
    if replica.authorization:
        headers["Authorization"] = replica.authorization
    return session.get(
        replica.url + path,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        allow_redirects=False,
        server_hostname=replica.server_name if replica.tls else None,
    )
