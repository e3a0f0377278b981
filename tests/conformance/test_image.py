"""The Dockerfile: clean by its linter, and what it copies is enough to build the whole package."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.chart import ROOT, run

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COPIED = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
SOURCES = [source for line in COPIED for source in line.split()]


LOCKS = ("requirements-build.lock", "requirements-dev.lock", "requirements.lock")


def instruction(name: str) -> str:
    return str(re.findall(rf"^{name} (.+)$", DOCKERFILE, flags=re.MULTILINE)[-1])


def test_hadolint_has_nothing_to_say() -> None:
    done = run(ROOT / ".venv-helm/bin/hadolint", ROOT / "Dockerfile")

    assert (done.returncode, done.stdout) == (0, "")


def test_the_gateway_itself_gets_the_signals_and_is_not_root() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["gateway"]
    assert json.loads(instruction("CMD")) == ["serve"]
    assert instruction("USER") == "10001:10001"


def test_the_build_context_is_what_the_dockerfile_copies() -> None:
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)

    assert sorted(allowed) == sorted(SOURCES)


def test_what_is_copied_builds_a_wheel_with_every_file_of_the_package(tmp_path: Path) -> None:
    for source in SOURCES:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "."]
    subprocess.run(pip, cwd=tmp_path, check=True, timeout=60)

    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    package = {file.relative_to(ROOT).as_posix() for file in (ROOT / "gateway").rglob("*") if file.is_file()}
    assert {file for file in package if "__pycache__" not in file} <= packed
    assert any(file.endswith(".lua") for file in packed)


def test_what_builds_the_package_is_what_it_is_tested_with() -> None:
    pinned = {name: set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS}
    build, develop, run_time = (pinned[name] for name in LOCKS)
    assert run_time < build < develop
