"""The compiled package, as the image has it: all that is named is compiled, and is what `make test` runs this with."""

from importlib import import_module
from pathlib import Path

import pytest

from compile_gateway import MODULES
from gateway.telemetry import build
from tests.chart import ROOT

pytestmark = pytest.mark.compiled

NAMES = [
    ".".join(source.relative_to(ROOT).with_suffix("").parts)
    for pattern in MODULES
    for source in sorted((ROOT / "gateway").glob(pattern))
    if source.name != "__init__.py"
]


@pytest.mark.parametrize("name", NAMES)
def test_every_module_that_is_named_is_imported_compiled(name: str) -> None:
    file = Path(str(import_module(name).__file__))
    assert file.is_relative_to(ROOT / ".compiled")
    assert file.suffix == ".so"


def test_operators_see_that_it_is_compiled() -> None:
    assert dict(zip(build.NAMES, build.labels(), strict=True))["compiled"] == "yes"


@pytest.mark.parametrize("pattern", MODULES)
def test_everything_that_is_named_is_there(pattern: str) -> None:
    assert [*(ROOT / "gateway").glob(pattern)]
