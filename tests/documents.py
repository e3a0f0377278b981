"""The project's documents as tests read them: sections, rows of tables, blocks of examples."""

import re
from pathlib import Path
from typing import Any, get_args, get_origin

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OWN = ("configuration", "errors", "identity", "limits", "operations", "streams")


def text_of(document: str) -> str:
    return (DOCS / f"{document}.md").read_text(encoding="utf-8")


def section(document: str, title: str) -> str:
    """Return what stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", text_of(document), re.MULTILINE | re.DOTALL)
    assert found, f"{document}.md has no section {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row; an escaped bar is no border."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not set(line) <= set("|- ")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def first_words(document: str, title: str) -> list[str]:
    """Return the first code word of each row's first cell."""
    return [found[1] for row in rows(section(document, title)) if (found := re.match(r"`([^`]+)`", row[0]))]


def words_of(alias: Any) -> list[str]:
    """Return every word of a Literal, or of a union of them."""
    return [word for arg in get_args(alias) for word in (words_of(arg) if get_origin(arg) else [arg])]


def block_in(text: str, start: str) -> str:
    """Return the first YAML block that starts so."""
    found = re.search(rf"```yaml\n({start}.*?)```", text, re.DOTALL)
    assert found
    return found[1]
