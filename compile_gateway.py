"""Compile the path of a call, in a package that is installed: `python compile_gateway.py DIRECTORY`.

By mypyc, into extension modules that stand beside the sources in DIRECTORY/gateway and are imported in their place. It
is the same Python, for less CPU (docs/performance.md#compiled), and runs without this too. Needs a C compiler and what
requirements-build.lock installs.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

from mypyc.build import mypycify
from setuptools import Distribution

ROOT = Path(__file__).resolve().parent

# What runs for each call or each piece of its answer. What reads configs, watches or serves operators gains nothing.
MODULES = (
    "admission/admission.py",
    "admission/headers.py",
    "admission/limit.py",
    "admission/permit.py",
    "admission/price.py",
    "admission/redis/command.py",
    "admission/redis/connection.py",
    "admission/redis/lane.py",
    "admission/redis/link.py",
    "admission/redis/parts.py",
    "admission/redis/recent.py",
    "admission/redis/scripts.py",
    "admission/redis/store.py",
    "admission/reservation.py",
    "calls/*.py",
    "client/*.py",
    "lookout.py",
    "outbox.py",
    "pipeline.py",
    "relay/*.py",
    "routing/balance.py",
    "routing/breaker.py",
    "routing/loan.py",
    "routing/pace.py",
    "routing/pool.py",
    "routing/replica.py",
    "routing/retries.py",
    "telemetry/access_log.py",
    "telemetry/cells.py",
    "telemetry/lines.py",
    "telemetry/record.py",
    "telemetry/series.py",
    "trail.py",
)

# 2 takes twice as long to compile and saves no more that could be measured.
OPTIMISATION = "1"


def main(directory: Path) -> None:
    """Compile the modules of `directory`/gateway in place."""
    compiler = str(sysconfig.get_config_var("CC")).split()[0]
    if shutil.which(compiler) is None:
        sys.exit(f"{compiler} is not on PATH: install a C compiler and Python's headers (Debian: gcc python3-dev)")
    with TemporaryDirectory() as work:
        # By themselves: where everything that is installed stands beside them, all of that would be taken for source.
        shutil.copytree(directory / "gateway", Path(work, "gateway"))
        os.chdir(work)
        sources = [str(source) for pattern in MODULES for source in sorted(Path("gateway").glob(pattern))]
        options = ["--config-file", str(ROOT / "pyproject.toml"), "--no-incremental"]
        extensions = mypycify([*options, *sources], opt_level=OPTIMISATION, debug_level="0", group_name="gateway")
        build = Distribution({"name": "gateway", "packages": [], "ext_modules": extensions}).get_command_obj(
            "build_ext"
        )
        build.inplace = True
        build.ensure_finalized()
        build.run()
        for compiled in Path().glob("*.so"):
            shutil.copy(compiled, directory)
        for compiled in Path("gateway").rglob("*.so"):
            shutil.copy(compiled, directory / compiled)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
