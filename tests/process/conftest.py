"""What tests of processes may use besides: `gateway` commands and real stores."""

from tests.journals import lasting_store
from tests.processes import processes
from tests.store_cluster import own_store_cluster, shared_store_cluster, store_cluster
from tests.store_sentinel import own_store_sentinels, shared_store_sentinels, store_sentinels
from tests.store_server import own_store_server, shared_store_server, store_server
from tests.zygote import zygote

__all__ = [
    "lasting_store",
    "own_store_cluster",
    "own_store_sentinels",
    "own_store_server",
    "processes",
    "shared_store_cluster",
    "shared_store_sentinels",
    "shared_store_server",
    "store_cluster",
    "store_sentinels",
    "store_server",
    "zygote",
]
