"""The house keeps its rules: short files, a README that names every part, commands and links that lead somewhere."""

import json
import re
import tomllib
from pathlib import Path

import click
import pytest

from gateway import cli
from tests.documents import ROOT

LONGEST = 400
PYTHON = sorted(path for folder in ("gateway", "tests", "bench") for path in (ROOT / folder).rglob("*.py"))
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_opens_with_its_contract(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    if path.is_relative_to(ROOT / "gateway"):
        assert text.startswith('"""')


def test_the_layout_names_every_part_in_the_order_of_imports() -> None:
    layout = re.search(r"```\ngateway/\n(.*?)```", README, re.DOTALL)
    assert layout
    named = re.findall(r"^  ([a-z_]+)(?:/|\.py) ", layout[1], re.MULTILINE)
    parts = {
        path.stem for path in (ROOT / "gateway").iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
    }
    assert set(named) == parts - {"__init__"}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert named == list(reversed(contracts[0]["layers"]))


def test_every_make_target_that_a_document_names_exists_and_the_readme_names_those_that_matter() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in in_code(path, r"make ([a-z]+)")}
    assert named <= targets
    assert {"run", "test", "check", "bench"} <= set(in_code(ROOT / "README.md", r"make ([a-z]+)"))


def test_every_command_and_option_that_a_document_names_exists() -> None:
    assert set(in_code(ROOT / "README.md", r"gateway ([a-z]+)")) == set(cli.main.commands)
    for path in DOCUMENTS:
        for name, rest in re.findall(r"^(?:    |`)?gateway ([a-z]+)((?: +[^\s`]+)*)", code_of(path), re.MULTILINE):
            command = cli.Later(name).loaded()
            if isinstance(command, click.Group) and rest:
                command = command.commands[rest.split()[0]]
            options = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}
            assert set(re.findall(r"--[a-z-]+", rest.partition("#")[0])) <= options, (
                f"{path.name}: gateway {name}{rest}"
            )


def code_of(path: Path) -> str:
    """Return a document's code, a line for each piece: fenced and indented lines, and what stands between backticks."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"^    (\S.*)$", text, re.MULTILINE), *re.findall(r"`([^`\n]+)`", text)])


def in_code(path: Path, pattern: str) -> list[str]:
    return re.findall(rf"^{pattern}\b", code_of(path), re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_documents_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if anchor:
            assert anchor in anchors_of(found), target


def anchors_of(path: Path) -> set[str]:
    """Return the anchors that Git forges give a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_document_is_found_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)", README))
    assert linked == {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}


def test_the_readme_shows_the_figures_of_the_last_run() -> None:
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = re.search(r"## Figures\n.*?(^\|.*?)\n\n", README, re.MULTILINE | re.DOTALL)
    assert shown
    assert shown[1] in measured


def test_locks_name_hashes_and_no_hosts() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        assert all("--hash=sha256:" in package for package in re.split(r"\n(?=\w)", text))
    (lock,) = (ROOT / "tests" / "conformance" / "sdks").glob("package-lock.json")
    _, *packages = json.loads(lock.read_text(encoding="utf-8"))["packages"].values()
    assert all(package["integrity"].startswith("sha512-") and "resolved" not in package for package in packages)


@pytest.mark.parametrize(
    ("proxy", "sentence"), [("gateway", "one worker costs"), ("envoy-policies", "Envoy with a token")]
)
def test_the_readme_tells_of_many_streams_what_the_last_run_showed(proxy: str, sentence: str) -> None:
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").partition("## Many streams at once")[2]
    row = next(line for line in measured.splitlines() if line.startswith(f"| {proxy} "))
    event, _, _, p50, p99, memory, _, _, bad = [cell.split()[0] for cell in row.strip("|").split("|")[1:]]
    told = re.findall(r"\d+(?:\.\d+)?(?= µs| KiB| ms)", " ".join(README.partition(sentence)[2].split()))
    assert told[:4] == [event, memory, *(f"{max(0, int(us)) / 1000:.1f}" for us in (p50, p99))]
    assert bad == "0"


def test_the_licence_is_the_one_that_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8").split()
    assert project["license"] == "Apache-2.0"
    assert licence[:4] == ["Apache", "License", "Version", "2.0,"]
    assert licence.count("Licensor") > 5
    assert f"## {project['version']} - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
