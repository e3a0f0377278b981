"""What the benchmark says of the limiter is what happened: round trips and scripts are counted, late calls are late."""

import os
from collections.abc import AsyncIterator

import pytest

from bench import engine, limiter, report
from bench.calls import calls, identity
from bench.limiter import GATEWAYS, KINDS, Limiter, Load, name_of, row_of
from bench.paced import PacedLoad
from bench.rounds import Running
from bench.stand import Stand
from tests.store_server import StoreServer

RATE = 300
OF_THE_STORE = {"store", "scripts", "trips"}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with await engine.listen(0) as server:
        yield server.sockets[0].getsockname()[1]


def stand_of(port: int, store: StoreServer) -> Stand:
    """Return a stand in which the engine itself is every gateway."""
    token = identity().token
    gateways = [Running(name_of(kind, number), port, os.getpid()) for kind in KINDS for number in range(GATEWAYS)]
    itself = Running("engine", port, os.getpid())
    return Stand(
        itself,
        Running("store", store.port, os.getpid()),
        proxies=tuple(gateways),
        absent=(),
        calls=calls(token),
        token=token,
    )


async def test_a_round_takes_every_figure_of_every_kind_and_rate(
    port: int, store_server: StoreServer, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring = Limiter(Load(rates=(RATE,), seconds=0.3))
    await measuring.round(0, stand_of(port, store_server))
    assert set(measuring.figures) == {row_of(kind, RATE) for kind in KINDS}
    for name, one in measuring.figures.items():
        missing = set() if name.startswith("redis") else OF_THE_STORE
        assert set(one.values) == set(report.LIMITER) - missing
        assert one.answers.bad == 0
        assert one.answers.good > 30
    assert "redis, 300/s: calls were decided without the store" in capsys.readouterr().err


def test_scripts_and_replies_of_the_store_are_counted(port: int, store_server: StoreServer) -> None:
    stand = stand_of(port, store_server)
    with store_server.client() as client:
        script = client.register_script("redis.call('SET', KEYS[1], 1, 'PX', 1000) return 1")
        script(["gw:x"])
        before = limiter._used([], stand)
        for _ in range(50):
            script(["gw:x"])
        pipeline = client.pipeline(transaction=False)
        for _ in range(50):
            script(["gw:x"], client=pipeline)
        pipeline.execute()
        used = [after - early for after, early in zip(limiter._used([], stand), before, strict=True)]
    assert used[2] == 100
    assert 51 <= used[3] < 60


async def test_calls_leave_at_their_rate_whether_or_not_others_were_answered(port: int) -> None:
    call = calls(identity().token).small
    async with PacedLoad([port, port], rate=RATE, seed=1) as load:
        count = await load.run(call, seconds=0.5)
    assert count.bad == 0
    assert count.good == len(load.took_us)
    assert count.good == pytest.approx(0.5 * RATE, rel=0.4)
    assert load.lasted_s >= 0.4
