"""The `gateway` command as a process: serving, stopping, and what it says when it cannot start."""

import asyncio
import json
import signal
import socket
from typing import Any

import aiohttp
import pytest

from tests.doors import CHAT
from tests.engines import ScriptedEngine, never
from tests.processes import Processes, Running, run, until
from tests.raw_client import raw_client
from tests.transcripts import LAST_CHUNK, chat, chat_role, chunked, head, transcript

pytestmark = pytest.mark.compiled

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
MODELS: dict[str, Any] = {"models": {"tiny": {"pool": "main"}}}
# Far below the time that calls under way are given, far above what an idle process takes on a busy machine.
QUICK_S = 8.0


@pytest.fixture
def zygote() -> None:
    """Have every command started as users start it."""


async def serving(processes: Processes, engine: ScriptedEngine, *, drain_timeout: str = "60s") -> tuple[Running, str]:
    """Start a gateway before `engine`; return it and a token."""
    config = processes.config(
        server={"drain_timeout": drain_timeout}, **MODELS, pools={"main": {"replicas": [engine.url]}}
    )
    token = processes.token()
    return await processes.serve(config), token


async def begin_stream(processes: Processes, gateway: Running, token: str) -> aiohttp.ClientResponse:
    """Begin a stream; its head has come."""
    headers = {"Authorization": f"Bearer {token}"}
    response = await processes.session.post(gateway.url + CHAT, json=BODY | {"stream": True}, headers=headers)
    assert response.status == 200
    return response


async def refuses_connections(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it waited to be accepted when the listener closed
        return False
    writer.transport.abort()
    return False


async def test_calls_are_answered_and_logged_on_one_line_each(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    gateway, token = await serving(processes, scripted_engine)
    answered = await processes.post(gateway, CHAT, BODY, token=token)
    assert answered.json()["usage"]["completion_tokens"] == 2
    refused = await processes.post(gateway, CHAT, BODY, token="not-a-token")
    assert refused.status == 401
    gateway.send(signal.SIGTERM)
    assert await gateway.ended(within_s=QUICK_S) == 0
    lines = [json.loads(line) for line in gateway.log.splitlines()]
    calls = {line["inference_id"]: line for line in lines if "endpoint" in line}
    assert calls[answered.headers["INFERENCE-ID"]]["completion_tokens"] == 2
    assert calls[refused.headers["INFERENCE-ID"]]["error_code"] == "invalid_token"
    assert token not in gateway.log
    said = [line["message"] for line in lines if "message" in line]
    where = f"tenants on 127.0.0.1:{gateway.port}, operators on {gateway.admin_url.removeprefix('http://')}"
    assert any(message.startswith("gateway ") and message.endswith(f" serves {where}") for message in said)
    assert said[-2].startswith("told to stop: calls under way may go on for ")
    assert said[-1] == "stopped"


async def test_a_stream_under_way_ends_well_when_the_gateway_is_told_to_stop(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    events, go = transcript(" a", " b"), asyncio.Event()
    scripted_engine.answer(head(), chunked(events[0]), go, *map(chunked, events[1:]), LAST_CHUNK)
    gateway, token = await serving(processes, scripted_engine)
    async with raw_client(gateway.port) as idle, await begin_stream(processes, gateway, token) as stream:
        gateway.send(signal.SIGTERM)
        await until(lambda: refuses_connections(gateway.port))
        assert await idle.rest() == b""
        async with processes.session.get(gateway.admin_url + "/readyz") as response:
            assert response.status == 503
            assert "about to stop" in (await response.json())["checks"]["draining"]
        async with processes.session.get(gateway.admin_url + "/livez") as response:
            assert response.status == 200
        go.set()
        assert await stream.read() == b"".join(events)
    assert await gateway.ended(within_s=QUICK_S) == 0
    assert "Traceback" not in gateway.log


async def test_a_stream_past_the_drains_time_ends_visibly(
    processes: Processes, scripted_engine: ScriptedEngine
) -> None:
    events = [chat_role(), chat(" a")]
    scripted_engine.answer(head(), *map(chunked, events), never)
    gateway, token = await serving(processes, scripted_engine, drain_timeout="100ms")
    async with await begin_stream(processes, gateway, token) as stream:
        gateway.send(signal.SIGTERM)
        last = (await stream.read()).removeprefix(b"".join(events))
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "draining"
    assert await gateway.ended(within_s=QUICK_S) == 0
    assert "Traceback" not in gateway.log


async def test_every_command_together_and_ctrl_c(processes: Processes) -> None:
    engine = await processes.engine("tiny")
    config = processes.config(**MODELS, pools={"main": {"replicas": [engine.url]}})
    token = await run("token", "--config", str(config), "--tenant", "acme", "--key", "key-1", "--ttl", "1m")
    assert (token.code, token.stderr) == (0, "")
    gateway = await processes.serve(config)
    reply = await processes.post(gateway, CHAT, BODY | {"max_tokens": 3}, token=token.stdout.strip())
    assert reply.json()["usage"]["completion_tokens"] == 3
    for running in (gateway, engine):
        running.send(signal.SIGINT)
        assert await running.ended(within_s=QUICK_S) == 0
        assert "Traceback" not in running.log


async def test_what_keeps_it_from_starting_is_told_in_one_line(processes: Processes) -> None:
    pools = {"main": {"replicas": ["http://127.0.0.1:1"]}}
    no_key = processes.config(**MODELS, pools=pools, auth={"development_key": "no/such.pem"})
    processes.token()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = {"listen": f"127.0.0.1:{port}"}
        both = [processes.config(**MODELS, pools=pools, **{name: busy}) for name in ("server", "admin")]
        rows = {
            "auth.development_key: no/such.pem does not exist": ("serve", "--config", str(no_key)),
            f"server.listen: cannot listen on 127.0.0.1:{port}": ("serve", "--config", str(both[0])),
            f"admin.listen: cannot listen on 127.0.0.1:{port}": ("serve", "--config", str(both[1])),
            "cannot start: ": ("engine", "--model", "tiny", "--port", str(port)),
        }
        for says, ended in zip(rows, await asyncio.gather(*[run(*row) for row in rows.values()]), strict=True):
            assert ended.code == 1
            (line,) = ended.stderr.splitlines()
            assert line.startswith(says)
