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
from functools import partial
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.clock import SystemClock
from gateway.identity.grant import RENEW_AT
from gateway.identity.keyset import VOUCHED_COOLDOWN_S
from tests.deadlines import DEADLINE_S
from tests.documents import block_in, section
from tests.doors import CHAT
from tests.engines import ScriptedEngine
from tests.identity_service import IdentityService, stranger
from tests.processes import Processes, Running

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
BEARERS = 20
EVERY_S = 0.01
# How long the service may take to answer where it hangs for longer: well below how long passports last.
HANGS_S = 2.0
CLOCK = SystemClock()


class Call(NamedTuple):
    """One call: whose token, when it was sent, what was answered, after how long."""

    bearer: str
    sent_at: float
    status: int
    seconds: float


@dataclass
class Traffic:
    """About 100 calls a second by known bearers in turn, and ten by strangers."""

    gateway: Running
    processes: Processes
    bearers: list[str]
    calls: list[Call] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sending:
            for serial in range(10**6):
                sending.create_task(self.call(self.bearers[serial % len(self.bearers)]))
                if serial % 10 == 0:
                    sending.create_task(self.call(stranger(serial)))
                await asyncio.sleep(EVERY_S)

    async def call(self, bearer: str) -> Call:
        sent_at, began = CLOCK.now(), CLOCK.monotonic()
        reply = await self.processes.post(self.gateway, CHAT, BODY, token=bearer)
        self.calls.append(Call(bearer, sent_at, reply.status, CLOCK.monotonic() - began))
        return self.calls[-1]

    async def during(self, seconds: float, doing: Callable[[], Awaitable[None] | None] | None = None) -> list[Call]:
        """Let traffic go on for a while; return what known bearers' calls ended in it, one sent in it of each."""
        before = len(self.calls)
        done = doing() if doing is not None else None
        if done is not None:
            await done
        began = CLOCK.now()

        def ended() -> list[Call]:
            return [call for call in self.calls[before:] if call.bearer in self.bearers]

        await asyncio.sleep(seconds)
        async with asyncio.timeout(DEADLINE_S):
            while {call.bearer for call in ended() if call.sent_at >= began} != {*self.bearers}:
                await asyncio.sleep(EVERY_S)
        return ended()


@asynccontextmanager
async def traffic(
    processes: Processes, engine: ScriptedEngine, service: IdentityService, *, timeout_s: float | None = None
) -> AsyncIterator[Traffic]:
    text = block_in(section("identity", "Unikorn"), "").replace("https://identity.example.com", service.issuer)
    auth = yaml.safe_load(text)["auth"]
    if timeout_s is not None:
        auth["issuers"][0]["exchange"]["timeout"] = f"{timeout_s}s"
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
    async with IdentityService(passport_s=6.5) as service:
        yield service


def statuses(calls: Iterable[Call]) -> set[int]:
    return {call.status for call in calls}


def p99_ms(calls: list[Call]) -> float:
    return 1000 * statistics.quantiles([call.seconds for call in calls], n=100)[98]


async def rotate(service: IdentityService) -> None:
    """Rotate as no service does sooner: a key set that was just read is taken for the last word for a while."""
    while CLOCK.now() - service.key_set_read_at < VOUCHED_COOLDOWN_S + 0.1:
        await asyncio.sleep(EVERY_S)
    service.rotate()


def renewal_due_at(service: IdentityService) -> float:
    """Return when the first passport of those that were given is asked for anew."""
    first = min(account.vouched_until for account in service.live.values()) - service.passport_s
    return first + RENEW_AT * service.passport_s / 2  # as short as it is, it is good for half its time


async def test_rotations_and_a_service_that_hangs_touch_no_known_token(
    processes: Processes, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    async with traffic(processes, scripted_engine, service, timeout_s=HANGS_S) as flowing:
        calm = await flowing.during(1.0)
        rotating = [call for _ in range(3) for call in await flowing.during(0.4, partial(rotate, service))]
        assert statuses([*calm, *rotating]) == {200}
        # Passports fall with the key before the last one: each is renewed once by a key that stays.
        assert statuses(await flowing.during(1.6)) == {200}
        assert statuses(await flowing.during(max(0.0, renewal_due_at(service) - CLOCK.now() - 0.2))) == {200}
        service.hang()
        late = asyncio.create_task(flowing.call(service.issue("late")))
        hung = await flowing.during(HANGS_S + 0.8)  # until the first renewals have failed, and before passports end
        refused = await late
        assert (refused.status, refused.seconds >= HANGS_S - 0.05) == (503, True)  # but for a timer's grain
        service.answer()
        assert statuses(hung) == {200}
        assert (await flowing.call(service.issue("later"))).status == 200
        told = f"p99 of known tokens: calm {p99_ms(calm):.1f} ms, hung {p99_ms(hung):.1f} ms"
        # Who waits for a service that hangs waits for its whole time limit; no busy machine takes as much.
        assert p99_ms(hung) < p99_ms(calm) + 1000 * 0.8 * HANGS_S, told
        samples = await flowing.gateway.metrics(processes.session)
    exchanged = samples.total("gateway_identity_seconds_count", issuer="uni-identity", result="ok")
    assert BEARERS * 2 <= exchanged <= sum(account.passports for account in service.live.values())
    assert samples.total("gateway_identity_seconds_count", result="failed") > 0
    assert samples.total("gateway_key_set_age_seconds", issuer="uni-identity") < 10
    assert service.most_at_once <= 16


async def test_an_outage_lets_in_who_was_vouched_for_and_only_until_then(
    processes: Processes, scripted_engine: ScriptedEngine, service: IdentityService
) -> None:
    service.passport_s = 4.0
    async with traffic(processes, scripted_engine, service) as flowing:
        revoked = flowing.bearers.pop()
        ends = {revoked: service.account(revoked).vouched_until}
        service.revoke(revoked)
        assert statuses(await flowing.during(0.5)) == {200}
        out = await flowing.during(0.6, service.down)
        ends |= {bearer: service.account(bearer).vouched_until for bearer in flowing.bearers}
        assert statuses(out) == {200}  # shorter than any passport
        out = await flowing.during(max(ends.values()) - CLOCK.now() + 0.3)
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
        for _ in range(8):  # every passport is renewed meanwhile
            service.says = chance.choice([None, (500, ""), (429, "slow down"), (503, '{"error": "warming_up"}')])
            assert statuses(await flowing.during(0.15)) == {200}
            service.says = None
            await flowing.during(0.1)
