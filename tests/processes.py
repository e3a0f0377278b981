"""Real processes of the `gateway` command: started on free ports, waited for, and never left behind."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from gateway.cli import main
from gateway.clock import SystemClock
from gateway.identity import development
from tests.deadlines import DEADLINE_S
from tests.doors import Reply, Samples
from tests.ports import free_port
from tests.zygote import Forked, Zygote

ROOT = Path(__file__).parent.parent
# A cold start imports for half a second; a busy machine has taken four times that.
START_S = 20.0
STOP_S = 10.0
POLL_S = 0.02

Loop = Literal["uvloop", "asyncio"]
# As where it is not installed.
_WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None; from gateway.cli import main; main(prog_name='gateway')"


@dataclass(frozen=True)
class Ended:
    """A command that ran to its end."""

    code: int
    stdout: str
    stderr: str


async def run(*arguments: str) -> Ended:
    """Run `gateway` with these arguments to its end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command(arguments), cwd=ROOT, stdout=pipe, stderr=pipe)
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), START_S)
    except TimeoutError:
        process.kill()
        await process.communicate()
        pytest.fail(f"gateway {' '.join(arguments)} did not end")
    assert process.returncode is not None
    return Ended(process.returncode, stdout.decode(), stderr.decode())


async def run_here(*arguments: str) -> Ended:
    """Run `gateway` in this process: it says and ends with the same, and nothing is started."""
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Ended(result.exit_code, result.stdout, result.stderr)


def command(arguments: tuple[str, ...], *, loop: Loop = "uvloop", module: str = "gateway") -> list[str]:
    return [sys.executable, *(["-m", module] if loop == "uvloop" else ["-c", _WITHOUT_UVLOOP]), *arguments]


class Running:
    """A `gateway serve` or `gateway engine` that answers at `url`; `admin_url` is where its metrics are."""

    def __init__(self, process: asyncio.subprocess.Process | Forked, log: Path, url: str, admin_url: str) -> None:
        self.url = url
        self.admin_url = admin_url
        self.log_path = log
        self._process = process

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        """What it wrote so far, to both streams."""
        return self.log_path.read_text()

    async def says(self, words: str) -> None:
        """Wait until it has written this: lines may wait a second for company."""

        async def written() -> bool:
            return words in self.log

        await until(written)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """The processes of its workers, where it has several."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sorted(child for task in tasks for child in _children(task))

    @property
    def memory(self) -> int:
        """How many bytes of memory it has to itself, as Linux counts them."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split()[0])

    @property
    def descriptors(self) -> int:
        """How many files, sockets among them, it has open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self, within_s: float = STOP_S) -> int:
        """Wait until it ended; return its exit code."""
        return await asyncio.wait_for(self._process.wait(), within_s)

    async def answers(self, session: aiohttp.ClientSession, path: str) -> None:
        """Wait until its operator's listener answers `path` with 200."""
        async with asyncio.timeout(START_S):
            while await self._status(session, path) != 200:
                if self._process.returncode is not None:
                    pytest.fail(f"it ended with {self._process.returncode}:\n{self.log}")
                await asyncio.sleep(POLL_S)

    async def metrics(self, session: aiohttp.ClientSession) -> Samples:
        async with session.get(self.admin_url + "/metrics") as response:
            return Samples(await response.text())

    async def stop(self) -> None:
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await self.ended()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _status(self, session: aiohttp.ClientSession, path: str) -> int:
        try:
            async with session.get(self.admin_url + path) as response:
                return response.status
        except aiohttp.ClientError:
            return 0


class Processes:
    """Starts processes, and ends them all. Its `session` is for the test's calls too."""

    def __init__(self, directory: Path, session: aiohttp.ClientSession, zygote: Zygote | None) -> None:
        self.session = session
        self._zygote = zygote
        self._directory = directory
        self._key = directory / "development-key.pem"
        self._listens: dict[Path, tuple[str, str]] = {}
        self._all: list[Running] = []
        self._numbers = count()  # of logs, also of processes that start at the same time

    async def engine(
        self,
        model: str,
        *,
        tokens_per_second: float | None = None,
        port: int | None = None,
        account: Path | None = None,
    ) -> Running:
        port = port or free_port()
        options = [] if tokens_per_second is None else ["--tokens-per-second", str(tokens_per_second)]
        options += [] if account is None else ["--account", str(account)]
        url = f"http://127.0.0.1:{port}"
        running = await self._start(url, url, "engine", "--model", model, "--port", str(port), *options)
        await running.answers(self.session, "/health")
        return running

    def config(self, **sections: Any) -> Path:
        """Write a config with these sections, a development key and free ports; return its path."""
        base: dict[str, Any] = {
            "server": {"listen": f"127.0.0.1:{free_port()}"},
            "admin": {"listen": f"127.0.0.1:{free_port()}"},
            "auth": {"development_key": str(self._key)},
        }
        for name, section in sections.items():
            base[name] = base.get(name, {}) | section
        path = self._directory / f"config-{len(self._listens)}.yaml"
        path.write_text(yaml.safe_dump(base))
        self._listens[path] = base["server"]["listen"], base["admin"]["listen"]
        return path

    def token(self, *, tenant: str = "acme", key: str = "key-1") -> str:
        """Sign a token with the key of the configs, which is there from then on."""
        signing = development.load_or_create(self._key)
        return development.sign(signing, tenant=tenant, key_id=key, plan=None, ttl_s=600, now=SystemClock().now())

    async def serve(
        self, config: Path, *, loop: Loop = "uvloop", module: str = "gateway", until: str = "/readyz"
    ) -> Running:
        """Start a gateway on this event loop, or what `module` makes of it, and wait until it is ready, or just up."""
        url, admin_url = [f"http://{listen}" for listen in self._listens[config]]
        running = await self._start(url, admin_url, "serve", "--config", str(config), loop=loop, module=module)
        await running.answers(self.session, until)
        return running

    async def post(self, running: Running, path: str, body: Mapping[str, Any], *, token: str) -> Reply:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(running.url + path, json=body, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def stop(self) -> None:
        await asyncio.gather(*[running.stop() for running in self._all])

    async def _start(
        self, url: str, admin_url: str, *arguments: str, loop: Loop = "uvloop", module: str = "gateway"
    ) -> Running:
        log = self._directory / f"log-{next(self._numbers)}"
        process: asyncio.subprocess.Process | Forked
        if self._zygote is not None and self._zygote.is_as_a_command and module == "gateway":
            process = await self._zygote.start(arguments, log, without=[] if loop == "uvloop" else ["uvloop"])
        else:
            with log.open("wb") as both:
                words = command(arguments, loop=loop, module=module)
                process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=both, stderr=both)
        self._all.append(Running(process, log, url, admin_url))
        return self._all[-1]


@pytest.fixture
async def processes(tmp_path: Path, zygote: Zygote | None) -> AsyncIterator[Processes]:
    unlimited, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=unlimited, timeout=patience) as session:
        started = Processes(tmp_path, session, zygote)
        try:
            yield started
        finally:
            await started.stop()


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = DEADLINE_S) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(POLL_S)


def _children(task: Path) -> list[int]:
    """Return the processes that a thread has begun; none of one that has ended since it was listed."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in (task / "children").read_text().split()]
    return []
