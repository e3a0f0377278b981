"""The benchmark measures what it says: right answers are told from wrong ones, CPU time is a process's own."""

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import engine, report
from bench.calls import Calls, calls, identity
from bench.load import ClosedLoop, Count, added_latency
from bench.processes import cpu_s, rss_mib
from bench.proxies import Site, known
from bench.rounds import Figures
from gateway.config import file


@pytest.fixture(scope="module")
def sent() -> Calls:
    return calls(identity().token)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with await engine.listen(0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("name", ["small", "large", "paced", "burst"])
async def test_the_engine_answers_every_call_with_the_bytes_that_are_expected(
    port: int, sent: Calls, name: str
) -> None:
    loop = ClosedLoop(port, connections=2)
    await loop.warm(sent.small)
    count = await loop.run(getattr(sent, name), seconds=0.01)
    loop.close()
    assert count.good >= 2
    assert count.bad == 0


def test_calls_have_the_sizes_that_the_table_names(sent: Calls) -> None:
    sizes = [len(call.request.partition(b"\r\n\r\n")[2]) for call in (sent.small, sent.large)]
    assert sizes == [pytest.approx(900, rel=0.1), pytest.approx(20_000, rel=0.1)]


def test_a_stream_has_a_part_for_each_token_its_opening_its_usage_and_its_end(sent: Calls) -> None:
    assert sent.paced.parts == sent.burst.parts == 128 + 3


async def test_an_answer_of_another_length_is_bad(port: int, sent: Calls) -> None:
    loop = ClosedLoop(port, connections=1)
    await loop.warm(sent.small)
    count = await loop.run(replace(sent.small, length=sent.small.length + 1), seconds=0.01)
    loop.close()
    assert (count.good, count.bad > 0) == (0, True)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n\r\n", b""])
async def test_a_refusal_garbage_and_a_cut_connection_are_bad(sent: Calls, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        loop = ClosedLoop(server.sockets[0].getsockname()[1], connections=1)
        await loop.warm(sent.small)
        count = await loop.run(replace(sent.small, length=0), seconds=0.01)
        loop.close()
    assert (count.good, count.bad > 0) == (0, True)


async def test_added_latency_of_the_engine_itself_is_none_to_speak_of(port: int, sent: Calls) -> None:
    added, count = await added_latency(port, port, sent.small, rate=500, pairs=20)
    assert abs(added.p50_us) < 5000
    assert (count.good, count.bad) == (40, 0)


def test_cpu_time_is_what_the_process_used() -> None:
    before = cpu_s(os.getpid())
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert cpu_s(os.getpid()) - before >= 0.15


def test_memory_is_that_of_the_process() -> None:
    # Of a process of its own: what this one takes anew may be memory that it had and does not use.
    code = "held = b'x' * int(input()); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        before = rss_mib(process.pid)
        process.stdin.write(b"%d\n" % (32 * 2**20))
        process.stdin.flush()
        process.stdout.readline()
        assert rss_mib(process.pid) - before > 24
        process.communicate(b"\n")


def test_the_gateway_accepts_the_configurations_that_it_is_measured_with(tmp_path: Path) -> None:
    site = Site(tmp_path, engine=1, store=2, jwks="{}")
    for proxy in known():
        if proxy.name.startswith("gateway"):
            command = proxy.command(site, 3)
            assert command is not None
            assert file.load(Path(command[-1])).limits.plans["bench"]


def test_the_table_shows_medians_and_their_ratio_to_the_reference() -> None:
    plain = Figures({"small": [100, 900, 110], "p50": [10]}, Count(good=7))
    ours = Figures({"small": [55, 50, 60]}, Count(good=8, bad=1))
    table = report.table({"plain": plain, "ours": ours}, report.REQUESTS, reference="plain")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[2] == ["plain", "110 (1.00)", "-", "-", "-", "10", "-", "-", "7", "0"]
    assert rows[3] == ["ours", "55 (0.50)", "-", "-", "-", "-", "-", "-", "8", "1"]


def test_without_the_reference_the_table_has_no_ratios() -> None:
    assert "(" not in report.table({"ours": Figures({"small": [55]})}, report.REQUESTS, reference="plain")


def test_a_figure_that_was_not_taken_is_not_a_number() -> None:
    assert math.isnan(report.median(Figures(), "small"))
