"""`gateway` where a store's name resolves while a file is beside the config: `python -m tests.named serve …`.

It runs on asyncio's own loop: uvloop asks the C library itself.
"""

import socket
import sys
from pathlib import Path
from typing import Any

from gateway.cli import main

NAME = "store.invalid"
KNOWN = "the-name-is-known"
true_lookup = socket.getaddrinfo


def lookup(host: Any, *rest: Any, **options: Any) -> Any:
    if host == NAME:
        if not Path(sys.argv[-1]).with_name(KNOWN).exists():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        host = "127.0.0.1"
    return true_lookup(host, *rest, **options)


if __name__ == "__main__":
    sys.modules["uvloop"] = None  # type: ignore[assignment] # as where it is not installed
    socket.getaddrinfo = lookup
    main()
