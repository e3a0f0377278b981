"""Processes of the benchmark: started on their cores, watched through /proc, ended at the end. Linux only."""

import os
import resource
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OTHER_FILES = 256
_STOP_WITHIN_S = 5.0
_ROOT = Path(__file__).resolve().parents[1]


class CannotOpen(Exception):
    """A process of this user may not have as many files open as are needed. The message says how many it may."""


def cores() -> tuple[set[int], set[int]]:
    """Return the proxies' core and those of everything else; on a machine of one core they are the same."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


@contextmanager
def pinned(on: set[int]) -> Iterator[None]:
    """Keep this process, and all that it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, on)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def open_files(count: int) -> None:
    """Let this process, and all that it starts, have so many connections open. Raises `CannotOpen`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise CannotOpen(f"a process may have {hard} files open here, and {needed} are needed; raise it: ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(command: Sequence[str], *, on: set[int], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on the cores `on`, its output in the file `log`."""
    # Set before the start and inherited: set on the child it would miss threads that were started already.
    with pinned(on), log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=_ROOT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(root: int) -> float:
    """CPU time, user and system, that a process and its descendants have used."""
    return sum(int(field) for pid in _tree(root) for field in _stat(pid)[11:13]) / _TICKS_PER_S


def rss_mib(root: int) -> float:
    """Memory that a process and its descendants hold."""
    pages = sum(int(_stat(pid)[21]) for pid in _tree(root))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            children.setdefault(int(_stat(pid)[1]), []).append(pid)
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat behind the command's name, which may hold anything: state is the first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
