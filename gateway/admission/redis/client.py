"""redis-py's client of the limit store, for what is asked beside calls: the ledger, settings, and what is used."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.admission.redis.sentinels import Sentinels
from gateway.config.store_url import StoreUrl


async def client(url: StoreUrl, *, within_s: float, retries: int = 1) -> Redis:
    """Return a client of the server that serves now; it takes `within_s` at most for each command, and to connect.

    Raises:
        OSError: no sentinel answers.
        ServerFailed: no sentinel knows the master.
    """
    return Redis.from_url(
        await _serving(url),
        socket_timeout=within_s,
        socket_connect_timeout=within_s,
        retry=Retry(NoBackoff(), retries),
    )


async def _serving(url: StoreUrl) -> str:
    if url.topology == "server":
        return url.text
    sentinels = Sentinels(url, ())
    try:
        return url.server(await sentinels.master())
    finally:
        await sentinels.close()
