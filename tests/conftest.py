"""What every test may use: engines, stores and a whole gateway in this process, on real sockets and uvloop."""

import asyncio
import faulthandler
from collections.abc import Callable, Mapping

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key, get_timeout_config_value
from hypothesis import HealthCheck, settings

from tests.closing import ClosingLoop
from tests.leaping import LeapingLoop

pytest_plugins = ["tests.engines", "tests.llamacpp", "tests.doors", "tests.sdks"]

# How long an example takes says more about the machine than about us: under load, good tests failed by it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": ClosingLoop,
    "asyncio": asyncio.SelectorEventLoop,
    "leaping": LeapingLoop,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole requests, which are tried with the package as the image has it (`make test`)."""
    for item in items:
        if item.path.parent.name == "flow":
            item.add_marker("compiled")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on the loop that the gateway runs on: uvloop's transports are not asyncio's. `loops` names others."""
    named = item.get_closest_marker("loops")
    return {name: LOOPS[name] for name in (named.args if named else ("uvloop",))}


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Guard a failed test against hanging while it is taken down: pytest's own guard ends with the failure."""
    if isinstance(node, pytest.Item):
        within_s, stderr = get_timeout_config_value(node.config), node.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(within_s, exit=True, file=stderr)
