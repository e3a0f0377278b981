"""What every test may use: engines, stores and a whole gateway in this process, on real sockets and uvloop."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop

pytest_plugins = ["tests.engines", "tests.llamacpp", "tests.doors"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on the loop that the gateway runs on: uvloop's transports are not asyncio's."""
    return {"uvloop": uvloop.new_event_loop}
