"""A permit from admission to settlement, with counts in memory and a clock that stands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Any

import pytest

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.ledger.posting import Posting
from gateway.admission.memory import MemoryStore
from gateway.admission.permit import Permit
from gateway.admission.reservation import Answer, Reservation, Settlement
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.errors import QuotaExceeded, RateLimited, RequestExceedsLimit
from gateway.identity.principal import Principal
from tests.deadlines import DEADLINE_S
from tests.limiting import SECOND, Remembering, SetClock, shown

REQUESTS = {"name": "requests", "per": ["key"], "requests": 10, "window": "1h"}
TOKENS = {"name": "tokens", "per": ["key"], "tokens": 100, "window": "1m"}
QUOTA = {"name": "quota", "per": ["tenant"], "tokens": 1000, "window": "month"}
AT_ONCE = {"name": "at-once", "per": ["key"], "concurrent": 2}


class Counting:
    """A memory store that remembers what it was asked to settle."""

    up = True
    pending = 0
    may_forget = False

    def __init__(self, clock: SetClock) -> None:
        self.settled: list[Settlement] = []
        self.renewed: list[Sequence[Reservation]] = []
        self.renewing = asyncio.Event()
        self._counts = MemoryStore(clock, lease_s=30)

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def reserve(self, reservation: Reservation) -> Answer:
        return await self._counts.reserve(reservation)

    def settle(self, settlement: Settlement) -> None:
        self.settled.append(settlement)
        self._counts.settle(settlement)

    def note(self, settlement: Settlement) -> None:
        pass

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        self.renewed.append(reservations)
        self.renewing.set()

    def ledger(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        return self._counts.ledger(tenant, since, until)


class Stage:
    """The admission stage with its surroundings; `admit` makes a call of its own each time."""

    def __init__(self, *rules: dict[str, Any], **limits: Any) -> None:
        self.clock = SetClock()
        self.store = Counting(self.clock)
        self.observer = Remembering()
        models = config.Limits.model_validate({"plans": {"standard": list(rules)}, **limits})
        self.admission = Admission(models, self.store, self.clock, observer=self.observer)
        self._calls = 0

    async def admit(
        self, *, prompt: int = 10, output: int | None = 20, plan: str | None = None, call_id: str | None = None
    ) -> Permit:
        self._calls += 1
        return await self.admission.admit(
            Principal("acme", "key-1", plan),
            call_of(prompt, output),
            model="m",
            pool="p",
            default_output_tokens=40,
            call_id=call_id or f"call-{self._calls}",
        )

    async def remaining(self) -> dict[str, int]:
        """Return what remains as a call that is given back sees it."""
        with await self.admit(prompt=0, output=0) as permit:
            headers = shown(permit)
        names = ("requests", "tokens")
        found = {name: headers.get(f"x-ratelimit-remaining-{name}") for name in names}
        own = {"requests": 1, "tokens": 0}
        return {name: int(value) + own[name] for name, value in found.items() if value is not None}


def call_of(prompt: int, output: int | None) -> Call:
    return Call(
        "chat",
        "m",
        b"",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        input_tokens=prompt,
        output_tokens=output,
    )


async def test_a_permit_shows_what_remains_while_it_holds_its_reservation() -> None:
    stage = Stage(REQUESTS, TOKENS)
    permit = await stage.admit()
    assert shown(permit)["x-ratelimit-remaining-requests"] == "9"
    assert shown(permit)["x-ratelimit-remaining-tokens"] == "70"
    assert await stage.remaining() == {"requests": 9, "tokens": 70}


async def test_leaving_without_settling_gives_everything_back() -> None:
    stage = Stage(REQUESTS, TOKENS, QUOTA, AT_ONCE)
    for _ in range(20):
        with pytest.raises(ZeroDivisionError), await stage.admit():
            raise ZeroDivisionError
    assert await stage.remaining() == {"requests": 10, "tokens": 100}


async def test_settling_charges_what_was_used_and_one_request_once() -> None:
    stage = Stage(REQUESTS, TOKENS, AT_ONCE)
    with await stage.admit() as permit:
        permit.settle(Usage(11, 4, cached=9, reasoning=3))
        permit.settle(Usage(99, 99))
    permit.settle(Usage(99, 99))
    assert len(stage.store.settled) == 1
    assert await stage.remaining() == {"requests": 9, "tokens": 85}


async def test_a_call_that_is_answered_elsewhere_is_booked_before_what_it_took_there_is_settled() -> None:
    stage = Stage(TOKENS | {"per": ["model"]})
    with await stage.admit() as permit:
        elsewhere: dict[str, Any] = {"model": "other", "pool": "p", "default_output_tokens": 40, "call_id": "there"}
        await stage.admission.admit_elsewhere(permit, Principal("acme", "key-1", None), call_of(10, 20), **elsewhere)
        permit.settle(Usage(11, 4))
    booked, there = stage.store.settled
    assert (booked.call_id, booked.account.model, booked.deltas) == ("call-1", "other", [-30])
    assert (there.call_id, there.usage, there.deltas) == ("there", None, [-15])


async def test_a_call_without_a_declared_output_reserves_the_models_default() -> None:
    stage = Stage(TOKENS)
    permit = await stage.admit(output=None)
    assert shown(permit)["x-ratelimit-remaining-tokens"] == "50"


async def test_a_call_that_used_more_than_it_reserved_goes_below_zero_and_the_next_is_refused() -> None:
    stage = Stage(TOKENS)
    (await stage.admit()).settle(Usage(75, 75))
    with pytest.raises(RateLimited) as refused:
        await stage.admit()
    assert refused.value.headers["x-ratelimit-remaining-tokens"] == "0"
    stage.clock.us += 90 * SECOND
    assert await stage.remaining() == {"tokens": 100}


async def test_usage_that_no_engine_could_mean_stays_within_what_can_be_counted() -> None:
    stage = Stage(QUOTA)
    (await stage.admit()).settle(Usage(-5, -5))
    assert await stage.remaining() == {"tokens": 1000}
    (await stage.admit()).settle(Usage(10**30, 10**30))
    with pytest.raises(QuotaExceeded):
        await stage.admit()


async def test_a_refused_call_can_come_again_when_told() -> None:
    stage = Stage(TOKENS)
    for _ in range(3):
        await stage.admit()
    with pytest.raises(RateLimited) as refused:
        await stage.admit()
    stage.clock.us += int(refused.value.headers["retry-after-ms"]) * 1000
    await stage.admit()


async def test_a_slot_is_free_as_soon_as_its_call_ends() -> None:
    stage = Stage(AT_ONCE)
    with await stage.admit(), await stage.admit():
        with pytest.raises(RateLimited) as refused:
            await stage.admit()
        assert refused.value.measure == "concurrency"
    with await stage.admit(), await stage.admit():
        pass


async def test_a_call_that_never_fits_is_told_so_even_where_nothing_is_left() -> None:
    stage = Stage(TOKENS)
    await stage.admit(prompt=100, output=0)
    with pytest.raises(RequestExceedsLimit):
        await stage.admit(prompt=101, output=0)


async def test_a_principal_without_limits_is_admitted_and_its_usage_settled_for_the_ledger() -> None:
    stage = Stage()
    with await stage.admit() as permit:
        assert permit.fields == ""
        permit.settle(Usage(1, 1))
    assert [one.usage for one in stage.store.settled] == [Usage(1, 1)]
    assert stage.observer.decisions == {}


async def test_decisions_are_told_once_for_each_rule_and_refusals_for_the_refusing_rules_only() -> None:
    trial = {"name": "trial", "per": ["key"], "tokens": 30, "window": "month", "shadow": True}
    stage = Stage({**REQUESTS, "requests": 2}, TOKENS, trial)
    await stage.admit()
    await stage.admit()
    with pytest.raises(RateLimited):
        await stage.admit()
    assert stage.observer.decisions == {
        ("requests", "admitted"): 2,
        ("requests", "refused"): 1,
        ("tokens", "admitted"): 2,
        ("trial", "admitted"): 1,
        ("trial", "shadow"): 1,
    }


async def test_a_shadow_is_settled_only_for_calls_that_it_counted() -> None:
    trial = {"name": "trial", "per": ["key"], "tokens": 50, "window": "month", "shadow": True}
    stage = Stage(trial)
    counted, over = await stage.admit(), await stage.admit()
    assert counted.fields == ""
    counted.settle(Usage(10, 0))
    over.settle(Usage(10, 0))
    assert [[one.rule for one in settled.limits] for settled in stage.store.settled] == [["trial"], []]


async def test_an_unknown_plan_is_told_for_every_call() -> None:
    stage = Stage(REQUESTS)
    for _ in range(3):
        await stage.admit(plan="unlimited")
    await stage.admit(plan="standard")
    assert stage.observer.unknown_plans == 3


async def test_calls_under_way_are_renewed_and_ended_ones_are_not() -> None:
    stage = Stage(AT_ONCE, lease="1s")
    stage.admission.start()
    try:
        ended, held = await stage.admit(call_id="ended"), await stage.admit(call_id="held")
        ended.settle(Usage(1, 1))
        await asyncio.wait_for(stage.store.renewing.wait(), DEADLINE_S)
        assert [one.call_id for one in stage.store.renewed[0]] == ["held"]
        del held
    finally:
        await stage.admission.close()
