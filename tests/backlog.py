"""A server that is there and accepts nobody: whoever connects waits."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nobody_accepts(port: int = 0, *, host: str = "127.0.0.1") -> Iterator[str]:
    """Give the URL of a listening socket whose backlog is full."""
    with socket.socket() as full, socket.socket() as queued:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind((host, port))
        full.listen(0)
        queued.connect(full.getsockname())  # fills the backlog
        yield f"http://{host}:{full.getsockname()[1]}"
