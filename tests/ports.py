"""Ports of tests that run beside each other: nobody else has one, also while it is closed for a while."""

import os
import random
import socket
from contextlib import suppress

# Linux's default; elsewhere they begin later.
_FIRST_OUTGOING = 32_768
# Each process of a run of tests gives its own ports, and each once: what is chosen is listened on some time later.
_OF_THIS_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))  # noqa: TID251 xdist's word
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # noqa: TID251 xdist's word
_chance = random.SystemRandom()  # hypothesis seeds the other one
_given: set[int] = set()


def free_port() -> int:
    """Return a port that stays free for who dies and returns: none that the system gives to outgoing connections."""
    while True:
        port = _chance.randrange(10_000 + _OF_THIS_PROCESS, _FIRST_OUTGOING, _PROCESSES)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
