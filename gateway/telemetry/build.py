"""What runs here: which version, on which Python, and whether the path of a call is compiled (docs/performance.md)."""

import platform
from pathlib import Path

import gateway
from gateway.telemetry import cells
from gateway.telemetry.series import Labels

NAMES = ("version", "python", "compiled")


def labels() -> Labels:
    """Return the values of `NAMES`; the last is `yes` or `no`."""
    compiled = Path(str(cells.__file__)).suffix != ".py"
    return gateway.__version__, platform.python_version(), "yes" if compiled else "no"
