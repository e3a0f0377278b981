"""`gateway usage` as a process: what two gateways booked in one real store, as a table, CSV and JSON lines."""

import asyncio
import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.doors import CHAT
from tests.engines import ScriptedEngine
from tests.ports import free_port
from tests.processes import Processes, Running, run, run_here, until
from tests.store_cluster import StoreCluster
from tests.store_sentinel import StoreSentinels
from tests.store_server import StoreServer
from tests.transcripts import answer, http, sse, transcript

AnyStore = StoreServer | StoreSentinels | StoreCluster

TODAY = datetime.fromtimestamp(SystemClock().now(), UTC).date().isoformat()
HEADER = [
    "calls", "refused", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "estimated_tokens",
]  # fmt: skip
BODY: dict[str, Any] = {"model": "acme/tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
ODD = 'ä "b", {c}'


async def booked(processes: Processes, store: AnyStore, engine: ScriptedEngine) -> Path:
    """Have two gateways serve 6 calls of `acme` and 2 of another tenant, and refuse 1; return the config of one."""
    processes.token()
    rule = {"name": "few", "per": ["tenant"], "requests": 6, "window": "day"}
    configs = [
        processes.config(
            models={"acme/tiny": {"pool": "main"}},
            pools={"main": {"replicas": [engine.url]}},
            limits={"store": store.url, "store_timeout": "5s", "plans": {"standard": [rule]}},
        )
        for _ in range(2)
    ]
    gateways: list[Running] = list(await asyncio.gather(*map(processes.serve, configs)))
    for n, (tenant, key) in enumerate([("acme", "key-1")] * 4 + [("acme", ODD)] * 2 + [(ODD, "key-1")] * 2):
        told = sse(transcript(" Hi", usage=(10, 2))) if n % 2 else http(answer("chat", " Hi", usage=(10, 2)))
        engine.answer(told)
        token = processes.token(tenant=tenant, key=key)
        reply = await processes.post(gateways[n // 2 % 2], CHAT, BODY | {"stream": n % 2 == 1}, token=token)
        assert reply.status == 200
    reply = await processes.post(gateways[0], CHAT, BODY, token=processes.token())
    assert reply.status == 429

    async def delivered() -> bool:
        with store.client() as client:
            return [
                key for key in client.scan_iter("gw:*:call:*") if client.get(key) not in (b"refused", b"settled")
            ] == []

    await until(delivered)
    return configs[0]


@pytest.mark.parametrize("store", ["store_server", "store_sentinels", "store_cluster"])
async def test_every_format_shows_what_both_gateways_booked(
    request: pytest.FixtureRequest, processes: Processes, store: str, scripted_engine: ScriptedEngine
) -> None:
    config = await booked(processes, request.getfixturevalue(store), scripted_engine)

    async def shown(*arguments: str) -> str:
        ended = await run("usage", "--config", str(config), *arguments)
        assert (ended.code, ended.stderr) == (0, "")
        return ended.stdout

    lines = [json.loads(line) for line in (await shown("--format", "json")).splitlines()]
    acme = {"day": TODAY, "tenant": "acme"} | dict(zip(HEADER, [6, 1, 60, 12, 0, 0, 0], strict=True))
    other = {"day": TODAY, "tenant": ODD} | dict(zip(HEADER, [2, 0, 20, 4, 0, 0, 0], strict=True))
    assert lines == [acme, other]

    grouped = await shown("--format", "csv", "--group-by", "tenant,key,model", "--since", TODAY, "--until", TODAY)
    assert list(csv.reader(io.StringIO(grouped))) == [
        ["tenant", "key", "model", *HEADER],
        ["acme", "key-1", "acme/tiny", "4", "1", "40", "8", "0", "0", "0"],
        ["acme", ODD, "acme/tiny", "2", "0", "20", "4", "0", "0", "0"],
        [ODD, "key-1", "acme/tiny", "2", "0", "20", "4", "0", "0", "0"],
    ]

    table = (await shown("--tenant", "acme")).splitlines()
    assert [line.split() for line in table] == [
        ["day", "tenant", *HEADER],
        [TODAY, "acme", "6", "1", "60", "12", "0", "0", "0"],
    ]
    assert len({len(line) for line in table}) == 1
    assert (await shown("--since", "2020-01-01", "--until", "2020-01-31", "--format", "json")) == ""


BAD = {
    "--since": ["--since", "yesterday"],
    "--until": ["--until", "2026-11-31"],
    "--group-by": ["--group-by", "day,colour"],
}


async def test_a_bad_option_is_named_and_ends_with_2(processes: Processes) -> None:
    config = processes.config(
        models={"m": {"pool": "main"}},
        pools={"main": {"replicas": ["http://127.0.0.1:1"]}},
        limits={"store": "redis://127.0.0.1:1/0"},
    )
    for option, given in BAD.items():
        ended = await run_here("usage", "--config", str(config), *given)
        assert (ended.code, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"{option}: ")


async def test_a_store_that_cannot_be_read_is_said_and_ends_with_1_or_2(processes: Processes) -> None:
    rest: dict[str, Any] = {
        "models": {"m": {"pool": "main"}},
        "pools": {"main": {"replicas": ["http://127.0.0.1:1"]}},
    }
    for form in ("redis://{}/0", "redis+sentinel://{}/limits", "redis+cluster://{}"):
        place = f":s3cret@127.0.0.1:{free_port()}"
        away = processes.config(**rest, limits={"store": form.format(place)})
        ended = await run_here("usage", "--config", str(away))
        assert (ended.code, ended.stdout) == (1, "")
        assert ended.stderr.startswith(f"{away}: limits.store: the ledger cannot be read: ")
        assert "s3cret" not in ended.stderr
    ended = await run_here("usage", "--config", str(processes.config(**rest)))
    assert (ended.code, ended.stdout) == (2, "")
    assert "limits.store" in ended.stderr
    assert "/admin/usage" in ended.stderr
