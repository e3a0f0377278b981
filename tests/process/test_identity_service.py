"""A gateway configured as docs/identity.md says for Unikorn, before a stand-in of its identity service, under traffic.

Whatever the service goes through, no valid token is refused and none works beyond its bound.
"""

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.clock import SystemClock
from tests.deadlines import DEADLINE_S
from tests.documents import block_in, section
from tests.doors import CHAT
from tests.engines import ScriptedEngine
from tests.identity_service import IdentityService, stranger
from tests.processes import Processes, Running

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
BEARERS = 20
EVERY_S = 0.01
CLOCK = SystemClock()


class Call(NamedTuple):
    """One call: whose token, when it was sent, what was answered, after how long."""

    bearer: str
    sent_at: float
    status: int
    seconds: float


@dataclass
class Traffic:
    """About 100 calls a second by known bearers in turn, every tenth by a stranger."""

    gateway: Running
    processes: Processes
    bearers: list[str]
    calls: list[Call] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sending:
            for serial in range(10**6):
                known = self.bearers[serial % len(self.bearers)]
                sending.create_task(self.call(stranger(serial) if serial % 10 == 0 else known))
                await asyncio.sleep(EVERY_S)

    async def call(self, bearer: str) -> Call:
        sent_at, began = CLOCK.now(), CLOCK.monotonic()
        reply = await self.processes.post(self.gateway, CHAT, BODY, token=bearer)
        self.calls.append(Call(bearer, sent_at, reply.status, CLOCK.monotonic() - began))
        return self.calls[-1]

    async def during(self, seconds: float, doing: Callable[[], Awaitable[None] | None] | None = None) -> list[Call]:
        """Let traffic go on for a while; return what known bearers' calls ended in it, one sent in it at least."""
        before = len(self.calls)
        done = doing() if doing is not None else None
        if done is not None:
            await done
        began = CLOCK.now()

        def ended() -> list[Call]:
            return [call for call in self.calls[before:] if call.bearer in self.bearers]

        await asyncio.sleep(seconds)
        async with asyncio.timeout(DEADLINE_S):
            while all(call.sent_at < began for call in ended()):
                await asyncio.sleep(EVERY_S)
        return ended()


@asynccontextmanager
async def traffic(processes: Processes, engine: ScriptedEngine, service: IdentityService) -> AsyncIterator[Traffic]:
    text = block_in(section("identity", "Unikorn"), "").replace("https://identity.example.com", service.issuer)
    auth = yaml.safe_load(text)["auth"]
    auth["issuers"][0]["exchange"]["timeout"] = "500ms"
    config = processes.config(auth=auth, models={"tiny": {"pool": "main"}}, pools={"main": {"replicas": [engine.url]}})
    processes.token()
    gateway = await processes.serve(config)
    bearers = [service.issue(f"sa-{serial}", orgs=(f"org-{serial}",)) for serial in range(BEARERS)]
    flowing = Traffic(gateway, processes, bearers)
    await asyncio.gather(*(flowing.call(bearer) for bearer in bearers))
    task = asyncio.create_task(flowing.run())
    try:
        yield flowing
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    strangers = Counter(call.status for call in flowing.calls if "nonce" in call.bearer)
    assert set(strangers) <= {401, 503}, "a forged token got in"
    assert "Traceback" not in gateway.log
    assert all(bearer not in gateway.log for bearer in bearers)


@pytest.fixture
async def service() -> AsyncIterator[IdentityService]:
    async with IdentityService(passport_s=3.0) as service:
        yield service


def statuses(calls: Iterable[Call]) -> set[int]:
    return {call.status for call in calls}


def p99_ms(calls: list[Call]) -> float:
    return 1000 * statistics.quantiles([call.seconds for call in calls], n=100)[98]


async def test_rotations_and_a_service_that_hangs_touch_no_known_token(
    processes: Processes, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    async with traffic(processes, scripted_engine, service) as flowing:
        calm = await flowing.during(1.0)
        rotating = [call for _ in range(3) for call in await flowing.during(0.4, service.rotate)]
        assert statuses([*calm, *rotating]) == {200}
        # Passports fall with the key before the last one: each is renewed once by a key that stays.
        assert statuses(await flowing.during(1.6)) == {200}
        hung = await flowing.during(1.0, service.hang)
        late = await flowing.call(service.issue("late"))
        assert (late.status, late.seconds >= 0.45) == (503, True)  # its time limit, but for a timer's grain
        service.answer()
        assert statuses(hung) == {200}
        assert (await flowing.call(service.issue("later"))).status == 200
        told = f"p99 of known tokens: calm {p99_ms(calm):.1f} ms, hung {p99_ms(hung):.1f} ms"
        # Who waits for a service that hangs waits for its whole time limit, 500 ms; a busy machine takes up to 200.
        assert p99_ms(hung) < p99_ms(calm) + 400, told
        samples = await flowing.gateway.metrics(processes.session)
    exchanged = samples.total("gateway_identity_seconds_count", issuer="uni-identity", result="ok")
    assert BEARERS * 2 <= exchanged <= sum(account.passports for account in service.live.values())
    assert samples.total("gateway_identity_seconds_count", result="failed") > 0
    assert samples.total("gateway_key_set_age_seconds", issuer="uni-identity") < 10
    assert service.most_at_once <= 16


async def test_an_outage_lets_in_who_was_vouched_for_and_only_until_then(
    processes: Processes, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    async with traffic(processes, scripted_engine, service) as flowing:
        revoked = flowing.bearers.pop()
        ends = {revoked: service.account(revoked).vouched_until}
        service.revoke(revoked)
        assert statuses(await flowing.during(0.5)) == {200}
        out = await flowing.during(0.6, service.down)
        ends |= {bearer: service.account(bearer).vouched_until for bearer in flowing.bearers}
        assert statuses(out) == {200}  # shorter than any passport
        out = await flowing.during(3.0)
        assert statuses(out) == {200, 503}
        await flowing.call(revoked)
        await flowing.during(0.3, service.up)
        up_since = CLOCK.now()
        assert statuses(call for call in await flowing.during(0.2) if call.sent_at > up_since) == {200}
        assert (await flowing.call(revoked)).status == 401
    for call in flowing.calls:
        assert call.status != 401 or call.bearer not in flowing.bearers, "a valid token was refused"
        if call.status == 200 and call in out:
            assert call.sent_at < ends[call.bearer], "a token worked beyond its passport"
        if call.bearer == revoked and call.status == 200:
            assert call.sent_at < ends[revoked]


async def test_a_service_that_fails_now_and_then_refuses_nobody(
    processes: Processes, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    chance = random.Random(7)
    async with traffic(processes, scripted_engine, service) as flowing:
        for _ in range(8):
            service.says = chance.choice([None, (500, ""), (429, "slow down"), (503, '{"error": "warming_up"}')])
            assert statuses(await flowing.during(0.15)) == {200}
            service.says = None
            await flowing.during(0.1)
