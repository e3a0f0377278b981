"""For how long a client has taken nothing; and a connection that closes is not hurried while its client takes some."""

import asyncio
import os
from collections.abc import Iterator
from math import ceil
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.connection import ClientConnection
from gateway.client.stall import Stall
from gateway.clock import SystemClock
from tests.silent_clients import silent_clients

WRITE_S = 60.0


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 10)), min_size=1))
def test_a_stall_lasts_since_bytes_were_last_taken(looks: list[tuple[int, float]]) -> None:
    now, before = 100.0, looks[0][0]
    stall, since = Stall(before, now), now
    for waiting, seconds in looks:
        now += seconds
        since = now if waiting < before else since
        before = waiting
        assert stall.lasted(waiting, now) == pytest.approx(now - since)


class Closing:
    """A transport that holds bytes for its client, on a system that does not tell what its kernel holds."""

    def __init__(self, file: int) -> None:
        self.holds = 1000
        self.aborted = False
        self._file = file

    def get_extra_info(self, _: str) -> Any:
        return self

    def setsockopt(self, *_: int) -> None:
        """Stand in for a socket."""

    def fileno(self) -> int:
        return self._file

    def write(self, _: bytes) -> None:
        """Hold no more."""

    def get_write_buffer_size(self) -> int:
        return self.holds

    def close(self) -> None:
        """Close once all that is held is sent."""

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def transport() -> Iterator[Closing]:
    file = os.open(os.devnull, os.O_WRONLY)
    yield Closing(file)
    os.close(file)


async def test_a_connection_closes_for_as_long_as_its_client_takes_some(transport: Closing) -> None:
    now = float(ceil(SystemClock().monotonic()))  # sums of other times are rounded: 60 s may be a little less
    connection = closing(transport)
    for second in range(200):
        transport.holds -= 1
        look(connection, now + second)
        assert not transport.aborted
    look(connection, now + 199 + WRITE_S - 1)
    assert not transport.aborted
    look(connection, now + 199 + WRITE_S)
    assert (transport.aborted, connection.stalled) == (True, True)


def closing(transport: Closing) -> ClientConnection:
    """Return a connection without a request, which is told to close before its client has all."""
    clients = silent_clients(write_timeout_s=WRITE_S)
    connection = clients()
    connection.connection_made(cast(asyncio.Transport, transport))
    look(connection, clients.loop.time() + 1)  # idle for longer than it may be
    return connection


def look(connection: ClientConnection, now: float) -> None:
    connection.check_time(now, idle_s=1, head_s=1, write_s=WRITE_S)
