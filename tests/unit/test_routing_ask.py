"""Whoever asks a replica can be stopped at any moment."""

import asyncio
import socket
from contextlib import suppress

import aiohttp
import pytest

from gateway.clock import SystemClock
from gateway.config import PoolEntry
from gateway.routing.ask import ask
from gateway.routing.replica import Replica
from tests.deadlines import PROMPTLY_S

LIMIT_S = 0.05


async def test_one_who_is_stopped_as_his_time_is_over_asks_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        entry = PoolEntry.model_validate({"replicas": [f"http://127.0.0.1:{silent.getsockname()[1]}"]})
        replica = Replica(entry.replicas[0], entry)
        async with aiohttp.ClientSession() as session:

            async def for_ever() -> None:
                while True:
                    with suppress(TimeoutError):
                        async with ask(session, replica, "/health", timeout_s=LIMIT_S):
                            pytest.fail("nobody answers")

            asking = asyncio.create_task(for_ever())
            await asyncio.sleep(LIMIT_S / 2)
            until = SystemClock.monotonic() + LIMIT_S
            while SystemClock.monotonic() < until:
                """Be busy while the time passes: what cancels him comes in one turn with it."""
            asking.cancel()
            await asyncio.wait({asking}, timeout=PROMPTLY_S)
            assert asking.cancelled()
