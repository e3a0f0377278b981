"""Clients that are let go have a grace, which does not pass while the gateway stands still and reads nothing."""

import asyncio
from typing import Any, cast

from gateway.client.clients import GRACE_S, LEAVING_LOOK_EVERY_S
from gateway.lookout import Lookout
from tests.one_timer import OneTimer
from tests.silent_clients import silent_clients


class Open:
    """A transport that tells whether it was closed."""

    closed = False

    def get_extra_info(self, _: str) -> Any:
        return self

    def setsockopt(self, *_: int) -> None:
        """Stand in for a socket."""

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close


async def let_go(*, connected_s: float = 0.0) -> tuple[OneTimer, Open]:
    """Return the loop of clients that were just let go, and the transport of one that connected so long ago."""
    clients = silent_clients()
    loop, transport = OneTimer(), Open()
    clients.loop = cast(Any, loop)
    clients._lookout = Lookout(clients.loop, clients._look_at_limits)
    clients().connection_made(cast(asyncio.Transport, transport))
    loop.now += connected_s
    clients.let_go()
    return loop, transport


async def test_who_asks_nothing_is_let_go_after_it() -> None:
    loop, transport = await let_go()
    for _ in range(round(GRACE_S / LEAVING_LOOK_EVERY_S) - 1):
        loop.fire()
        assert not transport.closed
    for _ in range(2):
        loop.fire()
    assert transport.closed


async def test_who_has_been_idle_is_let_go_once_all_is_read() -> None:
    loop, transport = await let_go(connected_s=2 * GRACE_S)
    assert not transport.closed  # its request may wait to be read
    loop.fire()
    assert transport.closed


async def test_a_look_that_comes_late_is_left_out_and_only_that() -> None:
    loop, transport = await let_go()
    loop.fire(late_s=2 * GRACE_S)  # its request may wait to be read
    assert not transport.closed
    loop.fire()
    assert transport.closed


async def test_where_every_look_is_late_it_ends_too() -> None:
    loop, transport = await let_go()
    for _ in range(2):
        loop.fire(late_s=2 * GRACE_S)
    assert transport.closed
