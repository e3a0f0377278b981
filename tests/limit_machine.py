"""Gateways, calls, wires and clocks that do what they may, and the model that every store is held against."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import uvloop
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.permit import Permit
from gateway.admission.reservation import Reservation
from gateway.admission.rules import Applying, Rulebook, costs
from gateway.admission.store import StoreUnavailable
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.errors import LimitsUnavailable, TooMany
from gateway.identity.principal import Principal
from tests.deadlines import DEADLINE_S
from tests.limit_model import Asked, Model, Rule, Step, Who
from tests.limit_stores import PATIENT_S, Member, Stores
from tests.limiting import DAY, PROBE, SECOND, limit, reservation
from tests.store_proxy import Loss
from tests.store_server import StoreServer, shared_store_server  # noqa: F401 fixtures

POLICIES = ("allow", "deny", "local")
WHO = [Who(tenant, key, model) for tenant, key in ("a1", "a2", "b1") for model in ("m", "n")]
NEVER = limit("day", 0)

GATEWAYS = st.integers(0, len(POLICIES) - 1)
CALLS = st.builds(Asked, st.sampled_from(WHO), st.integers(0, 25), st.integers(0, 40))
LOSSES: st.SearchStrategy[Loss] = st.sampled_from(["hang up", "hang up", "hang up", "swallow"])
FIGURES = st.integers(0, 25) | st.integers(0, 90)
USAGES = st.builds(
    Usage, FIGURES, FIGURES, st.integers(0, 9), st.integers(0, 9), st.sampled_from(["engine", "estimated"])
)
WHICH = st.integers(0, 30)
T = TypeVar("T")
Opened = Callable[[AsyncExitStack], Coroutine[Any, Any, Stores]]


def rules(*, ms: int) -> list[Rule]:
    """Return a rule of every kind; buckets give a whole unit back in a whole number of microseconds."""
    return [
        Rule("calls", ("key",), "requests", 4, 4 * ms, tenants=(("b", 2),)),
        Rule("tokens", ("model", "key"), "tokens", 100, 20 * ms),
        Rule("output", ("tenant",), "tokens", 100, 10 * ms, count="output", models="m"),
        Rule("everybody", (), "tokens", 200, 8 * ms),
        Rule("day", ("tenant",), "requests", 12, "day"),
        Rule("month", ("tenant", "model"), "tokens", 400, "month", count="input"),
        Rule("at-once", ("key",), "concurrent", 3),
        Rule("watch-tokens", ("key",), "tokens", 40, "day", shadow=True),
        Rule("watch-at-once", ("tenant",), "concurrent", 1, shadow=True),
        Rule("watch-calls", ("tenant",), "requests", 2, 2 * ms, shadow=True),
    ]


@dataclass(eq=False)
class Gateway:
    """One gateway's stage. `alive` until it crashes."""

    admission: Admission
    member: Member
    alive: bool = True

    @property
    def failures(self) -> int | None:
        """How often its store did not answer; None while it is known to be away."""
        return self.member.observer.failed.total() if self.member.store.up else None


@dataclass(eq=False)
class UnderWay:
    """A call that was admitted: where, when, by which permit, and what it had asked for."""

    name: str
    gateway: Gateway
    permit: Permit
    asked: Reservation
    since_us: int

    @property
    def shared(self) -> Permit | None:
        """What the shared store knows, or may know, of it."""
        return self.permit if self.permit.store is self.gateway.member.store else self.permit.doubtful


class Books(RuleBasedStateMachine):
    """Gateways that do what they may, and a model that follows what the store says it was asked to do.

    Which rules come, and with what, never depends on how they ended: that may differ with the time that they took.
    """

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stack = AsyncExitStack()
        self._stores = self._run(opened(self._stack))
        self._model = Model(rules(ms=100 if self._stores.real else 5000), self._stores.lease_us)
        self._settings = {policy: limits(self._model.rules, policy) for policy in POLICIES}
        self._rulebook = Rulebook(self._settings["allow"])
        self._calls: list[UnderWay] = []
        self._ended: list[UnderWay] = []
        self._later: list[Step] = []  # was told after the last probe
        self._unseen: dict[str, bool] = {}  # what is renewed
        self._gateways = [self._run(self._join(policy)) for policy in POLICIES]
        self._watcher = self._run(self._stores.join(timeout_s=PATIENT_S))

    @rule(gateway=GATEWAYS, asked=CALLS)
    def admit(self, gateway: int, asked: Asked) -> None:
        self._run(self._admit([(self._gateways[gateway], asked)]))

    @rule(gateway=GATEWAYS, calls=st.lists(CALLS, min_size=2, max_size=6))
    def admit_at_once(self, gateway: int, calls: list[Asked]) -> None:
        gateways = [self._gateways[(gateway + n) % len(POLICIES)] for n in range(len(calls))]
        self._run(self._admit(list(zip(gateways, calls, strict=True))))

    @rule(gateway=GATEWAYS, asked=CALLS, how=LOSSES)
    def admit_and_lose_the_answer(self, gateway: int, asked: Asked, how: Loss) -> None:
        _lose(self._gateways[gateway], how)
        self._run(self._admit([(self._gateways[gateway], asked)]))

    @rule(gateway=GATEWAYS, asked=CALLS, turns=st.integers(0, 12))
    def leave_while_it_is_admitted(self, gateway: int, asked: Asked, turns: int) -> None:
        self._run(self._leave(self._gateways[gateway], asked, turns))

    @rule(which=WHICH, used=USAGES)
    def settle(self, which: int, used: Usage) -> None:
        for call in _one_of(self._calls, which):
            self._settle(call, used)

    @rule(which=WHICH)
    def settle_with_what_it_reserved(self, which: int) -> None:
        for call in _one_of(self._calls, which):
            asked = self._model.calls[call.name]
            self._settle(call, Usage(asked.input, asked.output))

    @rule(which=WHICH)
    def give_back(self, which: int) -> None:
        for call in _one_of(self._calls, which):
            self._settle(call, None)

    @rule(which=WHICH, used=USAGES, how=LOSSES)
    def settle_and_lose_the_answer(self, which: int, used: Usage, how: Loss) -> None:
        for call in _one_of(self._calls, which):
            _lose(call.gateway, how)
            self._settle(call, used)

    @rule(which=WHICH)
    def send_a_reservation_again(self, which: int) -> None:
        """Its command was still in a connection that was given up."""
        for call in _one_of(self._calls, which):
            if call.name in self._model.admitted and self._recent(call):
                self._run(_sent(call.gateway.member.store.reserve(call.asked)))

    @rule(which=WHICH)
    def send_a_settlement_again(self, which: int) -> None:
        """Its answer was lost, or a journal is read that was read before."""
        for call in _one_of(self._ended, which):
            if call.gateway.alive and call.shared is not None and self._recent(call):
                usage = self._model.calls[call.name].usage
                call.gateway.member.store.settle(call.shared.settlement(usage, uncertain=call.shared.uncertain))

    @rule(gateway=GATEWAYS)
    def renew(self, gateway: int) -> None:
        self._run(self._renew(self._gateways[gateway]))

    @rule(gateway=GATEWAYS)
    def crash(self, gateway: int) -> None:
        self._run(self._crash(gateway))

    @rule(ms=st.sampled_from([1, 20, 100, 200]))
    def wait(self, ms: int) -> None:
        self._run(self._stores.wait(ms * 1000 if self._stores.real else ms * 50_000))

    @rule(us=st.sampled_from([SECOND - 1, 9 * SECOND, 30 * SECOND, 3600 * SECOND, DAY, 8 * DAY, 32 * DAY]))
    def wait_long(self, us: int) -> None:
        if not self._stores.real:
            self._run(self._quiet())  # no command is that long on its way
            self._run(self._stores.wait(us))

    @invariant()
    def counts_are_the_models(self) -> None:
        self._run(self._compare())

    def teardown(self) -> None:
        try:
            self._run(self._end())
        finally:
            self._run(self._stack.aclose())
            self._runner.close()

    # What the rules do.

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _join(self, policy: str) -> Gateway:
        member = await self._stores.join()
        return Gateway(Admission(self._settings[policy], member.store, SystemClock(), observer=member.observer), member)

    def _named(self, asked: Asked) -> str:
        name = f"call-{len(self._model.calls)}"
        self._model.calls[name] = asked
        return name

    def _applying(self, who: Who) -> Applying:
        return self._rulebook.applying(Principal(who.tenant, who.key), model=who.model, pool="p")

    def _recent(self, call: UnderWay) -> bool:
        return self._stores.now_us() - call.since_us < DAY

    async def _admit(self, calls: list[tuple[Gateway, Asked]]) -> None:
        named = [(gateway, self._named(replace(asked))) for gateway, asked in calls]
        failures = {gateway: gateway.failures for gateway, _ in named}
        ended = await asyncio.gather(*[self._one(*each) for each in named], return_exceptions=True)
        await self._compare()
        under_way = []
        for (gateway, name), permit in zip(named, ended, strict=True):
            assert isinstance(permit, Permit | TooMany | LimitsUnavailable), permit
            if gateway.failures == failures[gateway] is not None:
                assert isinstance(permit, Permit) == self._model.admitted[name], name
            if isinstance(permit, Permit):
                asked = self._model.calls[name]
                applying = self._applying(asked.who)
                asks = costs(applying.limits, _call(asked), default_output_tokens=0)
                whole = Reservation(name, applying.account, applying.limits, asks)
                under_way.append(UnderWay(name, gateway, permit, whole, self._stores.now_us()))
        self._calls += under_way

    async def _one(self, gateway: Gateway, name: str) -> Permit:
        asked = self._model.calls[name]
        return await gateway.admission.admit(
            Principal(asked.who.tenant, asked.who.key),
            _call(asked),
            model=asked.who.model,
            pool="p",
            default_output_tokens=0,
            call_id=name,
        )

    async def _leave(self, gateway: Gateway, asked: Asked, turns: int) -> None:
        call = asyncio.ensure_future(self._one(gateway, self._named(replace(asked))))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        if not call.cancelled() and call.exception() is None:
            call.result().settle(None)

    def _settle(self, call: UnderWay, usage: Usage | None) -> None:
        self._model.calls[call.name].usage = usage
        self._ended.append(call)
        self._calls.remove(call)
        call.permit.settle(usage)
        call.permit.settle(Usage(1000, 1000))  # has no effect

    async def _renew(self, gateway: Gateway) -> None:
        shared = [call.shared for call in self._calls if call.gateway is gateway and call.shared is not None]
        self._unseen = {one.call_id: one.uncertain for one in shared}
        await _sent(gateway.member.store.renew(shared))
        await self._compare()

    async def _crash(self, place: int) -> None:
        """End a gateway: what it had to tell is not told, and its calls are never settled."""
        await self._gateways[place].member.cut()
        self._gateways[place].alive = False
        self._calls = [call for call in self._calls if call.gateway.alive]
        self._gateways[place] = await self._join(POLICIES[place])

    async def _quiet(self) -> None:
        """Let all that is on its way arrive."""
        for gateway in self._gateways:
            if gateway.member.wire is not None:
                gateway.member.wire.lose_nothing()
        stores = [gateway.member.store for gateway in self._gateways]
        async with asyncio.timeout(DEADLINE_S):
            while not all(store.up and not store.pending for store in stores):
                await asyncio.sleep(0.002)
            await asyncio.gather(*[_sent(store.renew([reservation("nobody")])) for store in stores])

    async def _compare(self) -> None:
        """Hold all levels of one moment against the model's."""
        counts = {
            one.key: (one, its_rule, who)
            for who in WHO
            for one, its_rule in zip(self._applying(who).limits, self._model.applying(who), strict=True)
        }
        probe = [(one, 2**60) for one, _, _ in counts.values()]
        answer = await self._watcher.store.reserve(reservation("probe", *probe, (NEVER, 1), account=PROBE))
        now_us = self._follow()
        for (used, _), (_, its_rule, who) in zip(answer.levels, counts.values(), strict=False):
            expected = self._model.used(its_rule, who, now_us)
            assert used == expected, (its_rule.name, who)
        assert self._stores.lasting() == []

    def _follow(self) -> int:
        """Take the model to the moment of the probe, and return that."""
        steps = self._later + self._stores.told()
        probed = max(at for at, step in enumerate(steps) if step.call == "probe")
        for step in steps[:probed]:
            if step.call in self._model.calls:
                unseen = self._unseen[step.call] if step.does == "renew" else step.unseen
                self._model.take(step._replace(unseen=unseen))
        self._later = steps[probed + 1 :]
        return steps[probed].now_us

    async def _end(self) -> None:
        """Settle what is left, let windows pass, and look at the books."""
        for call in list(self._calls):
            self._settle(call, Usage(1, 2))
        await self._quiet()
        await self._compare()
        told = [call for call in self._ended if call.gateway.alive and call.name in self._model.admitted]
        assert [call.name for call in told if call.shared and call.name not in self._model.settled] == []
        await self._stores.wait(self._stores.lease_us if self._stores.real else 40 * DAY)
        await self._compare()
        now_us = self._stores.now_us()
        assert [
            (one.name, who)
            for who in WHO
            for one in self._model.applying(who)
            if (one.measure == "concurrent" or not self._stores.real) and self._model.used(one, who, now_us)
        ] == []
        until = datetime.fromtimestamp(now_us / SECOND, UTC).date()
        since = until - timedelta(days=390)
        booked = {
            (str(one.day), one.tenant, one.key, one.model, one.counter): one.figure
            async for one in self._watcher.store.ledger(None, since, until)
            if one.key != PROBE.key
        }
        assert booked == {
            place: figure for place, figure in self._model.books.items() if figure and place[0] >= str(since)
        }
        assert self._stores.events() in (None, self._model.told)
        for gateway in self._gateways:
            await gateway.member.store.close()
        await self._watcher.store.close()


def limits(rules: Sequence[Rule], policy: str) -> config.Limits:
    entries: dict[str, Any] = {}
    for one in rules:
        for tenant, figure in one.tenants:
            entries.setdefault(tenant, {"override": {}})["override"][one.name] = {one.measure: figure}
    plans = {"standard": [one.config() for one in rules]}
    return config.Limits.model_validate({"plans": plans, "tenants": entries, "on_store_failure": policy})


async def _sent(command: Awaitable[object]) -> None:
    """Wait for the answer, if there is one."""
    with suppress(StoreUnavailable):
        await command


def _one_of(calls: list[UnderWay], which: int) -> list[UnderWay]:
    """Return one call, or none where there is none."""
    return [calls[which % len(calls)]] if calls else []


def _lose(gateway: Gateway, how: Loss) -> None:
    if gateway.member.wire is not None and gateway.member.store.up:  # else it would meet who connects, and wait long
        gateway.member.wire.lose(how)


def _call(asked: Asked) -> Call:
    return Call(
        "chat",
        asked.who.model,
        b"",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        input_tokens=asked.input,
        output_tokens=asked.output,
    )
