"""Whatever calls, gateways, wires and clocks do, in memory, on fakeredis and on a real server: counts and books are
those of a model that is too simple to be wrong.
"""

from contextlib import AsyncExitStack
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.limit_machine import Books, Opened
from tests.limit_stores import InMemory, OnServer, Stores, fake_server
from tests.store_server import StoreServer, shared_store_server  # noqa: F401 fixtures


def check(opened: Opened, *, examples: int) -> None:
    """Let machines run, always the same ones: where time is a server's own, only what they do is the same."""
    every = settings(
        max_examples=examples,
        stateful_step_count=25,
        derandomize=True,
        phases=[Phase.generate],  # who shrinks what depends on a server's time shrinks for minutes, and in vain
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(partial(Books, opened), settings=every)  # type: ignore[arg-type] # any callable will do


async def in_memory(_: AsyncExitStack) -> Stores:
    return InMemory()


def behind(port: int, *, real: bool) -> Opened:
    async def opened(stack: AsyncExitStack) -> Stores:
        return OnServer(port, stack, real=real)

    return opened


def test_memory_keeps_the_books_of_the_model() -> None:
    check(in_memory, examples=80)


def test_fakeredis_keeps_the_books_of_the_model() -> None:
    with fake_server() as port:
        check(behind(port, real=False), examples=12)


@pytest.mark.parametrize("real", [False, True], ids=["set time", "own time"])
def test_a_server_keeps_the_books_of_the_model(shared_store_server: StoreServer, real: bool) -> None:  # noqa: F811
    check(behind(shared_store_server.port, real=real), examples=8 if real else 16)
