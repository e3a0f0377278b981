"""What `on_store_failure` means for calls while the shared store is away, and when it is back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.permit import Permit
from gateway.admission.redis.store import RedisStore
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.errors import LimitsUnavailable, QuotaExceeded, RateLimited, RequestExceedsLimit
from gateway.identity.principal import Principal
from tests.deadlines import DEADLINE_S, PROMPTLY_S, STORE_TIMEOUT_S
from tests.limiting import Remembering, shown
from tests.store_proxy import proxy_before
from tests.store_server import (  # noqa: F401 fixtures
    StoreServer,
    own_store_server,
    shared_store_server,
    store_server,
)

CLOCK = SystemClock()
LEASE_S = 2
PRINCIPAL = Principal("acme", "key-1")
RULES = (
    config.Rule(name="tokens", per=("key",), tokens=100, window="day"),
    config.Rule(name="at-once", per=("key",), concurrent=40),
)


@asynccontextmanager
async def gateway(
    url: str,
    mode: Literal["local", "allow", "deny"],
    *,
    rules: tuple[config.Rule, ...] = RULES,
    plans: dict[str, tuple[config.Rule, ...]] | None = None,
    processes: int = 1,
    observer: Remembering | None = None,
) -> AsyncIterator[Admission]:
    observer = observer or Remembering()
    limits = config.Limits(
        store=url,
        on_store_failure=mode,
        store_timeout=f"{STORE_TIMEOUT_S}s",
        expected_processes=processes,
        lease=f"{LEASE_S}s",
        plans={"standard": rules} | (plans or {}),
    )
    store = RedisStore(
        url,
        CLOCK,
        timeout_s=limits.store_timeout,
        lease_s=limits.lease,
        retention_s=limits.ledger_retention,
        observer=observer,
    )
    admission = Admission(limits, store, CLOCK, observer=observer)
    admission.start()
    try:
        yield admission
    finally:
        await admission.close()


async def admit(admission: Admission, call_id: str, *, tokens: int = 10, principal: Principal = PRINCIPAL) -> Permit:
    call = Call(
        "chat",
        "m",
        b"",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        input_tokens=tokens,
        output_tokens=0,
    )
    return await admission.admit(principal, call, model="m", pool="p", default_output_tokens=0, call_id=call_id)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def back(admission: Admission) -> None:
    """Wait until the store counts again."""
    await until(lambda: admission._store.up and not admission._store.pending)


async def remaining(admission: Admission) -> int:
    with await admit(admission, "look", tokens=0) as permit:
        return int(shown(permit)["x-ratelimit-remaining-tokens"])


async def test_local_limits_to_this_processes_share_and_the_store_counts_when_it_is_back(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    async with gateway(own_store_server.url, "local", processes=4) as admission:
        (await admit(admission, "before")).settle(Usage(10, 0))
        own_store_server.freeze()
        permits = [await admit(admission, f"alone-{i}") for i in range(2)]
        with pytest.raises(QuotaExceeded):
            await admit(admission, "over the share")
        for permit in permits:
            permit.settle(Usage(5, 0))
        await admit(admission, "room again")
        assert admission.ready
        own_store_server.thaw()
        await back(admission)
        # The first call alone was sent before the store was known to be away, and taken when it thawed.
        assert await remaining(admission) == 100 - 10 - 5


async def test_local_admits_a_call_larger_than_the_share_and_refuses_one_larger_than_the_limit(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    own_store_server.stop()
    async with gateway(own_store_server.url, "local", processes=10) as admission:
        (await admit(admission, "large", tokens=60)).settle(Usage(60, 0))
        with pytest.raises(QuotaExceeded):
            await admit(admission, "after")
        with pytest.raises(RequestExceedsLimit):
            await admit(admission, "too large", tokens=101)


async def test_local_admits_at_least_one_of_each_limit(own_store_server: StoreServer) -> None:  # noqa: F811
    own_store_server.stop()
    rules = (config.Rule(name="at-once", per=("key",), concurrent=2),)
    async with gateway(own_store_server.url, "local", processes=100, rules=rules) as admission:
        with await admit(admission, "one"), pytest.raises(RateLimited):
            await admit(admission, "two")
        with await admit(admission, "three"):
            pass


async def test_allow_admits_everything_and_settles_what_the_store_took(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    async with gateway(own_store_server.url, "allow") as admission:
        (await admit(admission, "before")).settle(Usage(10, 0))
        own_store_server.freeze()
        permits = [await admit(admission, f"free-{i}", tokens=90) for i in range(20)]
        assert all(permit.fields == "" for permit in permits)
        for permit in permits:
            permit.settle(Usage(7, 0))
        assert admission.ready
        own_store_server.thaw()
        await back(admission)
        assert await remaining(admission) == 100 - 10 - 7


async def test_deny_refuses_with_a_retry_after_and_takes_nothing(own_store_server: StoreServer) -> None:  # noqa: F811
    async with gateway(own_store_server.url, "deny") as admission:
        (await admit(admission, "before")).settle(Usage(10, 0))
        own_store_server.freeze()
        started = CLOCK.monotonic()
        for i in range(50):
            with pytest.raises(LimitsUnavailable) as refusal:
                await admit(admission, f"denied-{i}")
            assert refusal.value.headers["Retry-After"] == "1"
        assert CLOCK.monotonic() - started < STORE_TIMEOUT_S + PROMPTLY_S  # the first alone waits
        assert not admission.ready
        own_store_server.thaw()
        await back(admission)
        await until(lambda: admission.ready)
        assert await remaining(admission) == 90


@pytest.mark.parametrize("mode", ["local", "allow", "deny"])
async def test_each_rule_may_say_what_holds_of_it_and_all_are_charged_later(
    own_store_server: StoreServer,  # noqa: F811
    mode: Literal["local", "allow", "deny"],
) -> None:
    rules = (
        config.Rule(name="quota", per=("key",), tokens=100, window="day", on_store_failure="allow"),
        config.Rule(name="calls", per=("key",), requests=8, window="day", on_store_failure="local"),
        config.Rule(name="trial", per=("key",), tokens=5, window="day", on_store_failure="deny", shadow=True),
    )
    observer = Remembering()
    async with gateway(own_store_server.url, mode, rules=rules, processes=2, observer=observer) as admission:
        (await admit(admission, "before")).settle(Usage(10, 0))
        own_store_server.freeze()
        # The quota is spent by the first of them; requests are limited to this process's share; shadows never refuse.
        permits = [await admit(admission, f"away-{i}", tokens=90) for i in range(4)]
        assert set(shown(permits[0])) == {
            f"x-ratelimit-{figure}-requests" for figure in ("limit", "remaining", "reset")
        }
        assert shown(permits[0])["x-ratelimit-limit-requests"] == "4"
        with pytest.raises(QuotaExceeded) as refusal:
            await admit(admission, "over the share")
        assert "Quota calls is spent: 4 requests per day" in refusal.value.message
        assert admission.ready
        for permit in permits:
            permit.settle(Usage(7, 0))
        own_store_server.thaw()
        await back(admission)
        # Without a journal only of the call that was sent before the store was known to be away.
        assert await remaining(admission) == 100 - 10 - 7
    assert observer.decisions["calls", "admitted"] == 1 + 4 + 1
    assert observer.decisions["quota", "admitted"] == 1 + 1


@pytest.mark.parametrize("mode", ["local", "allow"])
async def test_a_rule_that_denies_refuses_its_plans_calls_and_no_others(
    own_store_server: StoreServer,  # noqa: F811
    mode: Literal["local", "allow"],
) -> None:
    prepaid = (config.Rule(name="credit", per=("key",), tokens=100, window="month", on_store_failure="deny"), RULES[1])
    payer = Principal("acme", "key-2", plan="prepaid")
    async with gateway(own_store_server.url, mode, plans={"prepaid": prepaid}) as admission:
        (await admit(admission, "before", principal=payer)).settle(Usage(10, 0))
        own_store_server.freeze()
        for i in range(3):
            with pytest.raises(LimitsUnavailable):
                await admit(admission, f"denied-{i}", principal=payer)
            (await admit(admission, f"admitted-{i}")).settle(None)
        assert admission.ready
        own_store_server.thaw()
        await back(admission)
        with await admit(admission, "look", tokens=0, principal=payer) as permit:
            assert shown(permit)["x-ratelimit-remaining-tokens"] == "90"
        with pytest.raises(RequestExceedsLimit):
            await admit(admission, "too large", tokens=101, principal=payer)


async def test_where_all_plans_deny_by_their_rules_the_process_is_not_ready(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    rules = (RULES[0].model_copy(update={"on_store_failure": "deny"}), RULES[1])
    own_store_server.stop()
    async with gateway(own_store_server.url, "local", rules=rules) as admission:
        with pytest.raises(LimitsUnavailable):
            await admit(admission, "denied")
        assert not admission.ready


async def test_a_weighted_call_that_never_fits_is_told_so_by_the_share_too(
    own_store_server: StoreServer,  # noqa: F811
) -> None:
    weights = config.Weights(input=2.5)
    rules = (
        config.Rule(name="quota", per=("key",), tokens=1, window="day", on_store_failure="allow"),
        config.Rule(name="credits", per=("key",), tokens=100, window="day", weights=weights),
    )
    observer = Remembering()
    own_store_server.stop()
    async with gateway(own_store_server.url, "local", rules=rules, processes=10, observer=observer) as admission:
        with pytest.raises(RequestExceedsLimit, match="This call needs 103"):
            await admit(admission, "too large", tokens=41)
        (await admit(admission, "as large as the limit", tokens=40)).settle(Usage(2, 0))
        with await admit(admission, "next", tokens=2) as permit:
            assert shown(permit)["x-ratelimit-remaining-tokens"] == "0"
    assert observer.decisions == {("credits", "admitted"): 2, ("credits", "refused"): 1}


@pytest.mark.parametrize("mode", ["local", "allow"])
async def test_a_call_whose_reservation_was_answered_too_late_is_charged_what_it_used(
    store_server: StoreServer,  # noqa: F811
    mode: Literal["local", "allow"],
) -> None:
    async with proxy_before(store_server.port) as proxy, gateway(proxy.url, mode) as admission:
        (await admit(admission, "before")).settle(Usage(10, 0))
        await back(admission)
        proxy.lose("swallow")
        permit = await admit(admission, "unseen", tokens=50)
        permit.settle(Usage(2, 1))
        await back(admission)
        assert await remaining(admission) == 100 - 10 - 3


async def test_a_long_call_keeps_its_slot_and_a_killed_gateway_loses_it(own_store_server: StoreServer) -> None:  # noqa: F811
    rules = (config.Rule(name="at-once", per=("key",), concurrent=1),)
    async with gateway(own_store_server.url, "deny", rules=rules) as other:
        async with gateway(own_store_server.url, "deny", rules=rules) as admission:
            held = await admit(admission, "long")
            ends_s = CLOCK.monotonic() + 2 * LEASE_S
            while CLOCK.monotonic() < ends_s:
                with pytest.raises(RateLimited):
                    await admit(other, "waiting")
                await asyncio.sleep(0.02)
        started = CLOCK.monotonic()
        while True:  # nobody renews any more: as after a SIGKILL
            try:
                await admit(other, "waited")
                break
            except RateLimited:
                await asyncio.sleep(0.02)
        assert CLOCK.monotonic() - started < LEASE_S + PROMPTLY_S
        del held


async def test_decisions_are_told_by_rule(own_store_server: StoreServer) -> None:  # noqa: F811
    observer = Remembering()
    rules = (
        config.Rule(name="two", per=("key",), requests=2, window="1h"),
        config.Rule(name="trial", per=("key",), requests=1, window="1h", shadow=True),
    )
    async with gateway(own_store_server.url, "deny", rules=rules, observer=observer) as admission:
        for i in range(2):
            (await admit(admission, f"call-{i}")).settle(Usage(1, 1))
        with pytest.raises(RateLimited):
            await admit(admission, "refused")
    assert observer.decisions == {
        ("two", "admitted"): 2,
        ("two", "refused"): 1,
        ("trial", "admitted"): 1,
        ("trial", "shadow"): 1,
    }
