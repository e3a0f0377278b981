"""What is compiled waits nowhere while it handles an exception: mypyc leaves that one with the thread meanwhile.

Whoever runs then and asks what is being handled (an await in a `finally` does) would raise it as its own.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from compile_gateway import MODULES
from tests.documents import ROOT

SOURCES = [source for pattern in MODULES for source in sorted((ROOT / "gateway").glob(pattern))]


def handling(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs while an exception may be handled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            yield from (*node.handlers, *node.finalbody)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_nothing_waits_while_an_exception_is_handled(source: Path) -> None:
    waits = ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.YieldFrom
    found = [
        node.lineno
        for part in handling(ast.parse(source.read_text()))
        for node in ast.walk(part)
        if isinstance(node, waits)
    ]
    assert found == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_of_what_is_left_by_waiting_there_are_time_limits_only(source: Path) -> None:
    """Those do not really wait, and are left by what ends their block, an exception too."""
    entered = [
        ast.unparse(item.context_expr)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.AsyncWith)
        for item in node.items
    ]
    assert [one for one in entered if not one.startswith("asyncio.timeout(")] == []
