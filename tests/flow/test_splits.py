"""One model in several pools: each call goes to one by weight, and a pool that cannot answer loses none."""

import asyncio
from collections.abc import Awaitable, Callable
from math import sqrt
from typing import Any

import pytest

from gateway.routing.orders.orders import Orders
from tests.doors import CHAT, Door, OpenDoor
from tests.engines import ScriptedEngine, Step, never, reset, script
from tests.envelope import error_of
from tests.transcripts import http

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
ILL = http(b"", status="500 X")
FULL = http(b"", status="503 X", headers=[("retry-after", "0")])
REFUSAL = http(b'{"error": {"message": "no such thing"}}', status="400 X")
OF_POOL = {"name": "of-pool", "per": ["pool"], "requests": 1000, "window": "day"}
OF_KEY = {"name": "of-key", "per": ["key"], "requests": 1000, "window": "day"}
# So little is left to the stable pool that it rounds to nothing: no call goes there first, whatever chance says.
CANARY_FIRST = {"canary": 1.0, "stable": 1e-300}
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class Site:
    """A gateway with one model in the pools stable and canary, and models for each of them alone, to look at counts."""

    def __init__(self, door: Door, stable: ScriptedEngine, canary: ScriptedEngine) -> None:
        self.door, self.stable, self.canary = door, stable, canary

    @property
    def asked(self) -> tuple[int, int]:
        return len(self.stable.requests), len(self.canary.requests)

    async def post(self, *, stream: bool = False, **changes: Any) -> Any:
        return await self.door.post(CHAT, ASK | {"stream": stream} | changes)

    async def counted(self) -> tuple[int, ...]:
        """Return how many calls are counted for each pool, and for the key."""
        await self.door.idle()
        found = []
        for model in ("stable", "canary"):
            page = await self.door.get_admin(f"/admin/limits/applied?tenant=acme&key=key-1&model={model}")
            used = {row["rule"]: row["used"] for row in page.json()["data"]}
            found.append(used["of-pool"])
        return (*found, used["of-key"])


OpenSite = Callable[..., Awaitable[Site]]


@pytest.fixture
def open_site(open_door: OpenDoor, scripted_engines: MoreEngines) -> OpenSite:
    async def open_one(
        weights: dict[str, float],
        *,
        fallbacks: tuple[str, ...] = (),
        rules: tuple[Any, ...] = (),
        **pools: dict[str, Any],
    ) -> Site:
        stable, canary = await scripted_engines(), await scripted_engines()
        entry = {"breaker": None}
        alone = {pool: {"pool": pool} for pool in ("stable", "canary")}
        door = await open_door(
            stable.url,
            models={"acme/tiny": {"pool": weights, "fallbacks": list(fallbacks)}, **alone},
            pools={
                name: {"replicas": [engine.url], **entry, **pools.get(name, {})}
                for name, engine in (("stable", stable), ("canary", canary))
            },
            limits={"plans": {"standard": [OF_POOL, OF_KEY, *rules]}},
        )
        return Site(door, stable, canary)

    return open_one


async def test_calls_are_shared_by_weight_and_counted_for_the_pool_that_answered(open_site: OpenSite) -> None:
    site, calls, share = await open_site({"stable": 80, "canary": 20}), 500, 0.2
    for _ in range(calls):
        assert (await site.post()).headers["x-gateway-model"] == "acme/tiny"
    stable, canary = site.asked
    assert abs(canary - calls * share) <= 5 * sqrt(calls * share * (1 - share))  # one run in a million is beyond
    assert await site.counted() == (stable, canary, calls)
    samples = await site.door.idle()
    assert samples.total("gateway_upstream_attempts_total", pool="canary", result="answered") == canary
    assert samples.total("gateway_requests_total", model="acme/tiny", outcome="ok") == calls


FAILURES: dict[str, tuple[Step, ...]] = {"ill": (ILL,), "full": (FULL,), "broken": (reset,), "silent": (never,)}


@STREAM
@pytest.mark.parametrize("failure", [*FAILURES, "gone"])
async def test_a_canary_that_is_dead_costs_no_client_an_answer(
    open_site: OpenSite, failure: str, *, stream: bool
) -> None:
    canary = {"timeouts": {"first_byte": "200ms", "answer": "200ms"}} if failure == "silent" else {}
    site = await open_site(CANARY_FIRST, canary=canary)
    if failure == "gone":
        await site.canary.close()
    calls = 3
    for _ in range(calls):
        if failure != "gone":
            site.canary.answer(*FAILURES[failure])
        reply = await site.post(stream=stream)
        assert (reply.status, reply.headers["x-gateway-model"]) == (200, "acme/tiny")
    assert site.asked == (calls, 0 if failure == "gone" else calls)
    assert await site.counted() == (calls, 0, calls)
    rows = (await site.door.get("/v1/usage?group_by=model")).json()["data"]
    assert [(row["model"], row["calls"]) for row in rows] == [("acme/tiny", calls)]
    samples = await site.door.idle()
    assert samples.total("gateway_requests_total", endpoint="chat", status="200") == calls
    assert samples.labels("gateway_fallbacks_total") == []


@pytest.mark.loops("leaping")  # it is down by that probe, and not because the machine stood still during one before
async def test_a_call_whose_canary_is_found_down_waits_no_longer(open_site: OpenSite) -> None:
    health = {"interval": "50ms", "unhealthy_after": 1}
    site = await open_site(CANARY_FIRST, canary={"health": health})
    site.canary.answer(never)
    call = asyncio.create_task(site.post(stream=True))
    await site.canary.asked()
    site.canary.probe = script(ILL)
    assert (await call).status == 200
    samples = await site.door.idle()
    assert samples.total("gateway_upstream_attempts_total", pool="canary", result="found_down") == 1


def busy(seconds: int) -> bytes:
    return http(b"", status="429 X", headers=[("retry-after", f"{seconds}")])


@STREAM
@pytest.mark.parametrize(
    ("canary", "stable", "status", "code", "wait"),
    [
        (FULL, ILL, 502, "upstream_error", None),
        (ILL, FULL, 502, "upstream_error", None),
        (busy(7), busy(40), 503, "overloaded", "7"),
        (busy(40), busy(7), 503, "overloaded", "7"),
        (ILL, None, 502, "upstream_error", None),
        (busy(40), None, 503, "overloaded", "40"),
    ],
    ids=["full and ill", "ill and full", "full and fuller", "fuller and full", "ill and none", "full and none"],
)
async def test_where_no_pool_can_answer_the_call_fails_as_both_did_and_costs_nothing(
    open_site: OpenSite, canary: bytes, stable: bytes | None, status: int, code: str, wait: str | None, *, stream: bool
) -> None:
    site = await open_site(CANARY_FIRST)
    site.canary.answer(canary)
    if stable is None:
        site.door.gateway._pools["stable"].order(Orders(drained=frozenset({site.stable.url})))
    else:
        site.stable.answer(stable)
    reply = await site.post(stream=stream)
    error_of(reply, status, code, "upstream_error" if status == 502 else "server_error")
    assert reply.headers.get("Retry-After") == wait
    assert site.asked == (0 if stable is None else 1, 1)
    assert await site.counted() == (0, 0, 0)


async def test_a_pool_without_weight_gets_no_call_at_all(open_site: OpenSite) -> None:
    site = await open_site({"stable": 1, "canary": 0})
    for _ in range(20):
        assert (await site.post()).status == 200
    site.stable.answer(ILL)
    error_of(await site.post(), 502, "upstream_error", "upstream_error")
    assert site.asked == (21, 0)


async def test_what_a_pools_engine_says_of_the_call_holds_for_the_model(open_site: OpenSite) -> None:
    site = await open_site(CANARY_FIRST)
    site.canary.answer(REFUSAL)
    error_of(await site.post(), 400, "invalid_value", "invalid_request_error")
    assert site.asked == (0, 1)
    site.canary.answer(ILL)
    site.stable.answer(REFUSAL)
    error_of(await site.post(), 400, "invalid_value", "invalid_request_error")
    assert await site.counted() == (1, 1, 2)


async def test_the_models_other_pools_come_before_its_fallbacks(open_site: OpenSite) -> None:
    site = await open_site(CANARY_FIRST, fallbacks=("stable",))
    site.canary.answer(ILL)
    assert (await site.post()).headers["x-gateway-model"] == "acme/tiny"
    site.canary.answer(ILL)
    site.stable.answer(ILL)
    assert (await site.post()).headers["x-gateway-model"] == "stable"
    assert await site.counted() == (2, 0, 2)


async def test_a_limit_of_the_other_pool_keeps_calls_from_it(open_site: OpenSite) -> None:
    site = await open_site(CANARY_FIRST, rules=({**OF_POOL, "name": "narrow", "requests": 1},))
    site.canary.answer(ILL)
    assert (await site.post()).status == 200
    site.canary.answer(ILL)
    error_of(await site.post(), 502, "upstream_error", "upstream_error")
    assert site.asked == (1, 2)
    assert await site.counted() == (1, 0, 1)


async def test_conversations_stay_in_their_pool_where_prompts_are_cached(open_site: OpenSite) -> None:
    site = await open_site({"stable": 1, "canary": 1}, canary={"balance": "prefix_affinity"})
    at = []
    for number in range(24):
        for turns in (1, 2, 3):
            before = site.asked
            said = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "So?"}] * turns
            assert (await site.post(messages=said)).status == 200
            at.append([now - then for now, then in zip(site.asked, before, strict=True)])
    turns_of = [at[start : start + 3] for start in range(0, len(at), 3)]
    assert all(turns.count(turns[0]) == 3 for turns in turns_of)
    assert {tuple(turns[0]) for turns in turns_of} == {(1, 0), (0, 1)}  # by the same chance in every run


async def test_a_model_in_several_pools_is_shown_once(open_site: OpenSite) -> None:
    site = await open_site({"stable": 1, "canary": 1})
    listed = [one["id"] for one in (await site.door.get("/v1/models")).json()["data"]]
    assert listed == ["acme/tiny", "stable", "canary"]
