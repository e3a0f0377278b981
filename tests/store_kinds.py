"""Every kind of store whose time a test sets, for tests that hold for all of them."""

from contextlib import AbstractAsyncContextManager

import pytest

from tests.limiting import TimedStore, timed_cluster, timed_memory, timed_redis
from tests.store_cluster import StoreCluster
from tests.store_sentinel import StoreSentinels
from tests.store_server import StoreServer

KINDS = ["memory", "redis", "sentinel", "cluster"]


def timed_kind(kind: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[TimedStore]:
    """Return a store without counts."""
    if kind == "memory":
        return timed_memory()
    if kind == "redis":
        server: StoreServer = request.getfixturevalue("shared_store_server")
        server.flush()
        return timed_redis(server)
    if kind == "cluster":
        cluster: StoreCluster = request.getfixturevalue("shared_store_cluster")
        cluster.flush()
        return timed_cluster(cluster)
    sentinels: StoreSentinels = request.getfixturevalue("shared_store_sentinels")
    sentinels.master.flush()
    return timed_redis(sentinels.master, sentinels.url)
