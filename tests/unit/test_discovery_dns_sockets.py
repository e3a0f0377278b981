"""The sockets of DNS look-ups: given up at any moment, none is left open."""

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from gateway.routing.discovery.dns_sockets import DnsSockets
from tests.deadlines import DEADLINE_S

# Looking up an address takes uvloop a thread and some 15 turns: each is tried often enough to meet all moments.
TURNS, TRIES = 30, 60


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Have nothing closed by the collector of garbage."""
    gc.disable()
    yield
    gc.enable()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["UDP", "TCP"])
def test_one_that_is_given_up_while_it_is_made_is_closed(
    loop: Callable[[], asyncio.AbstractEventLoop], kind: socket.SocketKind
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner, socket.create_server(("127.0.0.1", 0)) as server:
        runner.run(given_up(kind, server.getsockname(), turns=TURNS))  # from now on the loop's own are open
        before = runner.run(asyncio.to_thread(descriptors))
        made = [runner.run(given_up(kind, server.getsockname(), turns=turns)) for turns in TRIES * [*range(TURNS)]]
        assert not all(made)
        runner.run(closed(before))


async def given_up(kind: socket.SocketKind, server: tuple[str, int], *, turns: int) -> bool:
    """Give up the making of a socket after so many turns of the loop; return whether it was there already."""
    making = asyncio.ensure_future(DnsSockets().make_socket(socket.AF_INET, kind, 0, None, server))
    for _ in range(turns):
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait([making])
    made = not making.cancelled()
    if made:
        await (await making).close()  # type: ignore[no-untyped-call]
    return made


async def closed(before: int) -> None:
    """Wait until no more is open than there was."""
    async with asyncio.timeout(DEADLINE_S):
        while await asyncio.to_thread(descriptors) > before:
            await asyncio.sleep(0)
