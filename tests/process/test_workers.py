"""Several workers are one gateway to clients and operators, whatever becomes of a worker or of their supervisor."""

import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doors import CHAT, Reply
from tests.engines import ScriptedEngine, never, script
from tests.processes import Processes, Running, run, until
from tests.store_server import StoreServer
from tests.transcripts import LAST_CHUNK, answer, chunked, head, http, transcript

pytestmark = pytest.mark.compiled

WORKERS = 2
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
HOUR = {"per": ["key"], "window": "1h"}
TOKENS = HOUR | {"name": "tokens", "tokens": 1_000_000}


class Several:
    """A gateway of several workers. Each call comes on a connection of its own, so that they are spread."""

    def __init__(self, running: Running, processes: Processes, config: Path) -> None:
        self.running = running
        self.config = config
        self._processes = processes

    @property
    def pids(self) -> set[int]:
        """The workers' processes."""
        return set(self.running.workers)

    async def call(self, *, key: str = "key-1") -> Reply:
        async with self.asking(ASK, key=key) as response:
            return Reply(response.status, response.headers, await response.read())

    def asking(self, body: dict[str, Any], *, key: str = "key-1") -> Any:
        headers = {"Authorization": f"Bearer {self._processes.token(key=key)}", "Connection": "close"}
        return self._processes.session.post(self.running.url + CHAT, json=body, headers=headers)

    async def total(self, name: str, **labels: str) -> float:
        return (await self.running.metrics(self._processes.session)).total(name, **labels)

    async def operator(self, method: str, path: str, **options: Any) -> Reply:
        async with self._processes.session.request(method, self.running.admin_url + path, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def has_in_flight(self, calls: int) -> None:
        """See that pools and page tell so many calls in flight, and that they are the workers' own."""
        listed = (await self.operator("GET", "/admin/pools")).json()
        one = (await self.operator("GET", "/admin/pools/tiny")).json()
        status = (await self.operator("GET", "/admin/status")).json()
        for pool in (listed["data"][0], one, status["pools"][0]):
            (replica,) = pool["replicas"]
            assert pool["in_flight"] == replica["in_flight"] == calls
            for part in (pool, replica):
                assert [row["worker"] for row in part["workers"]] == list(range(WORKERS))
                assert sum(row["in_flight"] for row in part["workers"]) == calls
        assert (listed["silent_workers"], one["object"], status["calls"]["in_flight"]) == ([], "pool", calls)
        assert [config["worker"] for config in status["configs"]] == list(range(WORKERS))

    async def until_total(self, expected: float, name: str, **labels: str) -> None:
        async def reached() -> bool:
            return await self.total(name, **labels) == expected

        await until(reached)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def start(
    processes: Processes, store: StoreServer, engine: ScriptedEngine, *rules: dict[str, Any], workers: int
) -> Several:
    processes.token()
    engine.default = script(http(answer("chat", "Hi", usage=(3, 50))))
    config = processes.config(
        server={"workers": workers, "drain_timeout": "30s", "watch_config": None},
        models={"tiny": {"pool": "tiny"}},
        pools={"tiny": {"replicas": [engine.url]}},
        limits={"store": store.url, "store_timeout": "5s", "plans": {"standard": list(rules)}},
    )
    return Several(await processes.serve(config), processes, config)


@pytest.fixture
async def several(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine
) -> AsyncIterator[Several]:
    started = await start(processes, store_server, scripted_engine, TOKENS, workers=WORKERS)
    yield started
    assert "Traceback" not in started.running.log


async def test_four_workers_are_counted_and_limited_as_one(
    processes: Processes,
    store_server: StoreServer,
    scripted_engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = tmp_path / "of-the-library"  # what its way to count in several processes would go on with
    left.mkdir()
    (left / "counter_1.db").write_bytes(b"left by another")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(left))
    requests = HOUR | {"name": "requests", "requests": 10}
    tokens = HOUR | {"name": "tokens", "per": ["tenant"], "tokens": 500, "count": "output"}
    several = await start(processes, store_server, scripted_engine, requests, tokens, workers=4)
    for key, admitted in (("key-1", 10), ("key-2", 0)):  # the first key's are all that their tenant's tokens allow
        replies = [await several.call(key=key) for _ in range(60)]
        assert sum(reply.status == 200 for reply in replies) == admitted
        assert {reply.status for reply in replies} <= {200, 429}
    for _ in range(10):
        assert await several.total("gateway_requests_total") == 120
    assert await several.total("gateway_requests_total", outcome="ok") == 10
    assert await several.total("gateway_request_duration_seconds_count") == 120
    assert await several.total("gateway_build_info") == 1
    assert await several.total("gateway_replica_up") == 1
    assert await several.total("gateway_workers", state="answering") == 4
    scrape = await several.operator("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    assert scrape.headers["Content-Type"].startswith("application/openmetrics-text")
    assert scrape.body.endswith(b"# EOF\n")
    several.running.send(signal.SIGTERM)
    assert await several.running.ended() == 0
    assert [(one.name, one.read_bytes()) for one in left.iterdir()] == [("counter_1.db", b"left by another")]


async def test_a_killed_worker_is_replaced_and_leaves_its_counts_and_no_gauge(
    several: Several, scripted_engine: ScriptedEngine
) -> None:
    for _ in range(10):
        await several.call()
    for _ in range(12):
        scripted_engine.answer(head(), chunked(transcript(" a")[0]), never)
    streams = [await several.asking(ASK | {"stream": True}) for _ in range(12)]
    await several.until_total(12, "gateway_streams_open")
    assert await several.total("gateway_requests_total") == 10
    await several.has_in_flight(12)
    before = several.pids
    assert len(before) == WORKERS
    os.kill(min(before), signal.SIGKILL)

    async def replaced() -> bool:
        assert await several.total("gateway_requests_total") >= 10
        return await several.total("gateway_worker_restarts_total") == 1 and await several.total(
            "gateway_workers", state="answering"
        ) == WORKERS  # fmt: skip

    await until(replaced)
    assert len(several.pids - before) == 1
    assert await several.total("gateway_requests_total") == 10
    open_now = await several.total("gateway_streams_open")
    assert open_now < 12
    await several.has_in_flight(int(open_now))
    assert (await several.call()).status == 200
    for stream in streams:
        stream.close()
    await several.until_total(0, "gateway_streams_open")
    await several.until_total(11 + open_now, "gateway_requests_total")
    await several.running.says(f" serves tenants on 127.0.0.1:{several.running.port} by {WORKERS} workers")
    await several.running.says("worker 0 ended (killed: Killed); another starts in 0 s")


async def test_a_gateway_outlives_all_its_workers_and_those_that_come_in_their_place(several: Several) -> None:
    killed: set[int] = set()

    async def others() -> bool:
        return bool(several.pids - killed)

    for _ in range(2):  # those that serve, and then those that begin to
        await until(others)
        for pid in several.pids - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    await several.until_total(WORKERS, "gateway_workers", state="answering")
    assert (await several.call()).status == 200


async def test_a_worker_that_hangs_holds_up_no_scrape_and_no_probe(several: Several) -> None:
    for _ in range(20):
        await several.call()
    assert await several.total("gateway_requests_total") == 20
    hung = min(several.pids)
    os.kill(hung, signal.SIGSTOP)
    try:
        async with asyncio.timeout(15):  # many who ask at once wait no longer than one
            scrapes = [several.total("gateway_requests_total") for _ in range(7)]
            assert await asyncio.gather(*scrapes) == [20] * 7
            assert await several.total("gateway_workers", state="silent") == 1
            assert (await several.operator("GET", "/readyz")).status == 200
            ended = await run("status", "--at", several.running.admin_url.removeprefix("http://"))
            assert (ended.code, ended.stderr) == (0, "")
            assert "Workers that do not answer, and of which nothing is shown: " in ended.stdout
            assert "1 answering, 1 silent, 0 restarts" in ended.stdout
            assert (await several.operator("GET", "/livez")).status == 200
    finally:
        os.kill(hung, signal.SIGCONT)
    await several.until_total(0, "gateway_workers", state="silent")


async def test_workers_end_well_when_their_supervisor_is_killed(
    several: Several, scripted_engine: ScriptedEngine
) -> None:
    events, go = transcript(" a", " b"), asyncio.Event()
    scripted_engine.answer(head(), chunked(events[0]), go, *map(chunked, events[1:]), LAST_CHUNK)
    pids = several.pids
    async with several.asking(ASK | {"stream": True}) as stream:
        several.running.send(signal.SIGKILL)
        await several.running.ended()
        go.set()
        assert await stream.read() == b"".join(events)

    async def gone() -> bool:
        return not any(map(exists, pids))

    await until(gone)


async def test_a_worker_that_ends_well_hands_in_its_last_figures(several: Several) -> None:
    for _ in range(20):
        await several.call()
    for pid in several.pids:  # before any scrape
        os.kill(pid, signal.SIGTERM)
    await several.until_total(WORKERS, "gateway_worker_restarts_total")
    await several.until_total(WORKERS, "gateway_workers", state="answering")
    assert await several.total("gateway_requests_total") == 20
    assert (await several.call()).status == 200


async def test_operators_are_passed_on_to_a_worker(several: Several) -> None:
    rule = {"tenant": "acme", "rule": "tokens", "tokens": 50}
    put = await several.operator("PUT", "/admin/limits/rules", json=rule)
    assert put.status == 200, put.body
    listed = await several.operator("GET", "/admin/limits?tenant=acme")
    assert [entry["tokens"] for entry in listed.json()["data"]] == [50]
    foreign = await several.operator("PUT", "/admin/limits/rules", json=rule, headers={"Origin": "http://a"})
    assert foreign.status == 403
    for path in ("/admin", "/admin/", "/admin/pools", "/admin/limits"):
        assert (await several.operator("GET", path, headers={"Host": "evil.example"})).status == 403
    for path in ("/admin/", "/admin"):
        assert b"<h1>Gateway " in (await several.operator("GET", path)).body
    unknown = await several.operator("GET", "/admin/pools/none")
    assert (unknown.status, unknown.error["code"]) == (404, "not_found")
    missing = await several.operator("GET", "/nothing")
    assert (missing.status, missing.error["code"]) == (404, "not_found")
    assert "/admin/limits" in missing.error["message"]
    assert (await several.operator("POST", "/metrics")).status == 405
    large = io.BytesIO(b"x" * (3 << 20))
    assert (await several.operator("PUT", "/admin/limits/rules", data=large)).error["code"] == "request_too_large"


async def test_a_signal_to_reload_reaches_every_worker_and_log_lines_say_which_speaks(several: Several) -> None:
    several.running.send(signal.SIGHUP)

    async def told() -> bool:
        lines = [json.loads(line) for line in several.running.log.splitlines()]
        return sorted(line["worker"] for line in lines if "SIGHUP" in line.get("message", "")) == list(range(WORKERS))

    await until(told)


async def test_a_worker_comes_back_with_the_config_that_holds_whatever_the_file_says_by_then(several: Several) -> None:
    """What was refused, or nobody was told to read, neither keeps it from starting nor holds in it alone."""
    path = several.config
    first = yaml.safe_load(path.read_text())

    async def killed(text: str, *, reload: bool) -> set[int]:
        """Write this config, kill a worker, and return what limits the workers then have."""
        restarts = await several.total("gateway_worker_restarts_total")
        refused = await several.total("gateway_config_reloads_total", result="failed")
        path.write_text(text)
        if reload:
            several.running.send(signal.SIGHUP)
            await several.until_total(refused + WORKERS, "gateway_config_reloads_total", result="failed")
        os.kill(min(several.pids), signal.SIGKILL)
        await several.until_total(restarts + 1, "gateway_worker_restarts_total")
        await several.until_total(WORKERS, "gateway_workers", state="answering")
        return {int((await several.call()).headers["x-ratelimit-limit-tokens"]) for _ in range(12)}

    assert await killed(yaml.safe_dump(first | {"models": {}}), reload=True) == {1_000_000}
    assert await killed("limits: [", reload=False) == {1_000_000}
    second = yaml.safe_dump(
        first | {"limits": first["limits"] | {"plans": {"standard": [TOKENS | {"tokens": 700_000}]}}}
    )
    path.write_text(second)
    several.running.send(signal.SIGHUP)
    await several.until_total(WORKERS, "gateway_config_reloads_total", result="ok")
    elsewhere = yaml.safe_load(second)
    elsewhere["limits"]["store"] = "redis://127.0.0.1:1/0"  # takes a restart: of the gateway, not of one worker
    assert await killed(yaml.safe_dump(elsewhere), reload=True) == {700_000}


async def test_what_keeps_workers_from_starting_ends_the_gateway_and_is_told_once(
    processes: Processes, store_server: StoreServer, tmp_path: Path
) -> None:
    base: dict[str, Any] = {
        "models": {"tiny": {"pool": "tiny"}}, "pools": {"tiny": {"replicas": ["http://127.0.0.1:1"]}}
    }  # fmt: skip
    processes.token()
    taken = await processes.serve(processes.config(**base))
    listen = {"listen": f"127.0.0.1:{taken.port}"}
    shared = base | {"limits": {"store": store_server.url}}
    rows = {
        "server.listen: cannot listen on 127.0.0.1": (1, processes.config(**shared, server=listen)),
        "admin.listen: cannot listen on 127.0.0.1": (
            1,
            processes.config(**shared, admin={"listen": taken.admin_url.removeprefix("http://")}),
        ),
        "limits.journal: cannot keep a journal in": (
            2,
            processes.config(**base, limits={"store": store_server.url, "journal": str(tmp_path / "none")}),
        ),
    }
    starts = [run("serve", "--config", str(config), "--workers", "2") for _, config in rows.values()]
    for (says, (code, _)), ended in zip(rows.items(), await asyncio.gather(*starts), strict=True):
        assert ended.code == code, ended
        (line,) = ended.stderr.splitlines()
        assert line.startswith(says)
        assert ended.stdout == ""
