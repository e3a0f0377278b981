"""A store whose name does not resolve, and later does: limits hold again without a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, Reply
from tests.engines import ScriptedEngine
from tests.named import KNOWN, NAME
from tests.processes import Processes
from tests.store_server import StoreServer

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
LIMIT = 20


@pytest.mark.parametrize("policy", ["allow", "deny"])
async def test_limits_hold_again_when_the_stores_name_resolves_again(
    processes: Processes,
    own_store_server: StoreServer,
    scripted_engine: ScriptedEngine,
    tmp_path: Path,
    policy: str,
) -> None:
    known = tmp_path / KNOWN
    known.touch()
    token = processes.token()
    rule = {"name": "requests", "per": ["key"], "requests": LIMIT, "window": "month"}
    limits = {"store_timeout": "1s", "on_store_failure": policy, "plans": {"standard": [rule]}}
    config = processes.config(
        models={"tiny": {"pool": "tiny"}},
        pools={"tiny": {"replicas": [scripted_engine.url]}},
        limits={"store": f"redis://{NAME}:{own_store_server.port}/0", **limits},
    )
    gateway = await processes.serve(config, module="tests.named")

    async def call() -> Reply:
        return await processes.post(gateway, CHAT, ASK, token=token)

    assert (await call()).headers["x-ratelimit-remaining-requests"] == str(LIMIT - 1)
    known.unlink()
    own_store_server.stop()
    own_store_server.start()  # forgetful, and at an address that nobody finds
    for _ in range(5):
        reply = await call()
        if policy == "deny":
            assert (reply.status, reply.error["code"]) == (503, "limits_unavailable")
            assert "Retry-After" in reply.headers
        else:
            assert reply.status == 200
        assert "x-ratelimit-limit-requests" not in reply.headers
    async with asyncio.timeout(DEADLINE_S):
        while "Name or service not known" not in gateway.log:
            await asyncio.sleep(0.02)
    known.touch()
    async with asyncio.timeout(DEADLINE_S):
        while "x-ratelimit-limit-requests" not in (reply := await call()).headers:
            await asyncio.sleep(0.02)
    await gateway.answers(processes.session, "/readyz")
    # Nothing that waited comes in a burst: what is left goes down by one a call, and then calls are refused.
    left = int(reply.headers["x-ratelimit-remaining-requests"])
    assert left >= LIMIT - 2
    replies = [await call() for _ in range(left + 1)]
    assert [one.status for one in replies] == [200] * left + [429]
