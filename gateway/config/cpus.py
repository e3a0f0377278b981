"""How many CPUs this process may use: those it may run on, or what a container's quota amounts to, if that is less."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable(quota: Path = _QUOTA) -> int:
    """Return a number of whole CPUs, at least 1; `quota` is a file as cgroup v2 has it: `150000 100000`, or `max …`."""
    cpus = len(os.sched_getaffinity(0))
    try:
        at_most, period = quota.read_text(encoding="ascii").split()
        return max(1, min(cpus, round(int(at_most) / int(period))))
    except (OSError, ValueError):  # there is no quota
        return cpus
