"""What tests of processes may use besides: `gateway` commands and real stores."""

from tests.processes import processes
from tests.store_server import own_store_server, shared_store_server, store_server

__all__ = ["own_store_server", "processes", "shared_store_server", "store_server"]
