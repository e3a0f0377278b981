"""A fixture with a real llama.cpp server: another engine than vLLM, with its own framing, usage and timings."""

import http.client
import select
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.clock import SystemClock

ENVIRONMENT = Path(__file__).parent.parent / ".venv-llamacpp"
MODEL = "smollm2-135m"
# A cold start reads 100 MB from disk: nine seconds were seen on a busy machine.
READY_S = 60.0
POLL_S = 0.05
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """Where the server listens (`http://127.0.0.1:…`), and the name of its model."""

    url: str
    model: str


@pytest.fixture(scope="session")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """Give a running llama.cpp server, one for the whole run."""
    if not (ENVIRONMENT / "installed").exists():
        pytest.fail(f"there is no llama.cpp server in {ENVIRONMENT}: run make test", pytrace=False)
    log = tmp_path_factory.mktemp("llamacpp") / "log"
    command = [str(ENVIRONMENT / "bin" / "python"), str(Path(__file__).parent / "llamacpp_server.py"), MODEL]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as server,
    ):
        try:
            url = _url(server)
            if url is None:
                end = log.read_text(errors="replace")[-2000:]
                pytest.fail(
                    f"llama.cpp's server did not come up in {READY_S:.0f} s; its log ends:\n{end}", pytrace=False
                )
            yield LlamaCpp(url, MODEL)
        finally:
            server.terminate()
            if not _ended(server, STOP_S):
                server.kill()


def _url(server: subprocess.Popen[bytes]) -> str | None:
    """Wait until the server is healthy and return its URL; None when it ended or took too long."""
    assert server.stdout is not None
    clock = SystemClock()
    deadline = clock.monotonic() + READY_S
    printed, _, _ = select.select([server.stdout], [], [], READY_S)
    url = server.stdout.readline().decode().strip() if printed else ""
    while url and not _healthy(url):
        if clock.monotonic() > deadline or _ended(server, POLL_S):
            return None
    return url or None


def _healthy(url: str) -> bool:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=1)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False


def _ended(server: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        server.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True
