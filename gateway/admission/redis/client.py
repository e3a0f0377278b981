"""redis-py's client of the limit store, for what is asked beside calls: the ledger, settings, and what is used."""

from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from gateway.admission.redis.cluster_map import ask_map
from gateway.admission.redis.connection import ServerFailed
from gateway.admission.redis.sentinels import Sentinels
from gateway.config.store_url import Address, StoreUrl

Client = Redis | RedisCluster

# What says that the store cannot be asked now. RuntimeError: of uvloop, where a connection that was just closed is
# written to; redis-py, which uses streams, does not look.
FAILURES = (RedisError, RedisClusterException, OSError, ServerFailed, RuntimeError)


def overwritten(reply: object) -> bool:
    """Whether a reply says that a key of ours holds something else: it counts as empty, as it does for calls."""
    return isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")


async def client(url: StoreUrl, *, within_s: float, retries: int = 1) -> Client:
    """Return a client of the server that serves now, or of all masters of a cluster.

    It takes `within_s` at most for each command, and to connect.

    Raises:
        OSError: no sentinel answers. That and whatever the client raises later is one of `FAILURES`.
        ServerFailed: no sentinel knows the master.
    """
    options: dict[str, Any] = {
        "socket_timeout": within_s,
        "socket_connect_timeout": within_s,
        "retry": Retry(NoBackoff(), retries),
    }
    if url.topology == "cluster":
        nodes = [ClusterNode(host, port) for host, port in url.places]
        return RedisCluster.from_url(url.server(url.places[0]), startup_nodes=nodes, **options)
    return Redis.from_url(await _serving(url), **options)


async def client_of(key: str, url: StoreUrl, *, within_s: float) -> Redis:
    """Return a client of the server that serves `key` now: of a cluster its master, and no other. It tries once.

    It is what stays connected: redis-py's own client of a cluster leaves connections open, and errors in the log, when
    masters change under it.

    Raises:
        OSError: neither sentinels nor nodes answer.
        ServerFailed: nobody knows the master.
    """
    place = url.server(await _master_of(key, url)) if url.topology == "cluster" else await _serving(url)
    return Redis.from_url(place, socket_timeout=within_s, socket_connect_timeout=within_s, retry=Retry(NoBackoff(), 0))


async def _master_of(key: str, url: StoreUrl) -> Address:
    found, _ = await ask_map(url, url.places)
    slot = key_slot(key.encode())
    for start, end, master in found:
        if start <= slot < end:
            return master
    raise ServerFailed(f"no master has the slot of {key}")


async def _serving(url: StoreUrl) -> str:
    if url.topology == "server":
        return url.text
    sentinels = Sentinels(url, ())
    try:
        return url.server(await sentinels.master())
    finally:
        await sentinels.close()
