"""Calls that are answered elsewhere leave the books as if made there: in every store, whatever answers are lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from gateway import config
from gateway.admission.admission import Admission
from gateway.admission.journal.journal import Journal
from gateway.admission.limit import Limit
from gateway.admission.permit import Permit
from gateway.admission.redis.levels import RedisLevels
from gateway.admission.redis.store import RedisStore
from gateway.admission.store import Store
from gateway.calls.call import Call
from gateway.calls.usage import Usage
from gateway.clock import SystemClock
from gateway.errors import LimitsUnavailable, TooMany
from gateway.identity.principal import Principal
from tests.deadlines import DEADLINE_S, STORE_TIMEOUT_S
from tests.limiting import Remembering, SetClock, TimedStore, reservation, until_asked
from tests.store_kinds import KINDS, timed_kind
from tests.store_proxy import Loss, proxy_before
from tests.store_server import StoreServer

CLOCK = SystemClock()
TODAY = datetime.now(UTC).date()
WHO = Principal("acme", "key-1")


class Place(NamedTuple):
    """Where a call may be answered."""

    model: str
    pool: str


# The second is another pool of the first's model, the third a fallback, the fourth one in the first's pool.
PLACES = [Place("m", "p"), Place("m", "q"), Place("n", "r"), Place("o", "p")]
PLACE = st.sampled_from(PLACES)
FIGURES = st.sampled_from([2, 40, 10**6, 10**6, 10**6])


def rule(number: int, measure: str, figure: int, **rest: Any) -> dict[str, Any]:
    window = {} if measure == "concurrent" else {"window": rest.pop("window")}
    count = {"count": rest.pop("count")} if measure == "tokens" else {}
    weights = {"weights": {"cached": 0.5, "output": 2}} if count == {"count": "total"} and number % 2 else {}
    kept = {name: value for name, value in rest.items() if name not in {"window", "count"}}
    return {"name": f"rule-{number}", measure: figure, **window, **count, **weights, **kept}


RULES = st.lists(
    st.tuples(
        st.sampled_from(["requests", "tokens", "concurrent"]),
        FIGURES,
        st.fixed_dictionaries(
            {
                "per": st.lists(st.sampled_from(["key", "tenant", "model", "pool"]), unique=True),
                "models": st.sampled_from([[], [], ["m"], ["n"], ["[no]"]]),
                "shadow": st.sampled_from([False, False, True]),
                "window": st.sampled_from(["1h", "day", "month"]),
                "count": st.sampled_from(["total", "input", "output"]),
            }
        ),
    ),
    max_size=6,
).map(lambda made: [rule(i, measure, figure, **rest) for i, (measure, figure, rest) in enumerate(made)])
TOKENS = st.integers(0, 60)
USAGES = st.builds(Usage, TOKENS, TOKENS, st.just(0), st.just(0), st.sampled_from(["engine", "estimated"]))
EARLIER = st.lists(st.tuples(PLACE, USAGES), max_size=2)


def call_of(*, tokens: int = 10, output: int = 20) -> Call:
    return Call(
        "chat",
        "m",
        b"",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        input_tokens=tokens,
        output_tokens=output,
    )


class Story(NamedTuple):
    """A call that is admitted at `first`, turned to those `between` in vain, and answered at `last`."""

    rules: list[dict[str, Any]]
    earlier: list[tuple[Place, Usage]]
    first: Place
    between: list[Place]
    last: Place
    usage: Usage


class World:
    """One admission stage and its store."""

    def __init__(self, limits: config.Limits, store: Store) -> None:
        self.store = store
        self.admission = Admission(limits, store, SetClock(), observer=Remembering())
        found = [one for place in PLACES for one in self.admission.rulebook.applying(WHO, **place._asdict()).limits]
        self.limits: dict[str, Limit] = {one.key: one for one in found}

    async def admit(self, place: Place, call_id: str) -> Permit | None:
        asked = {**place._asdict(), "default_output_tokens": 0, "call_id": call_id}
        try:
            return await self.admission.admit(WHO, call_of(), **asked)
        except TooMany:
            return None

    async def elsewhere(self, permit: Permit, place: Place, number: int) -> bool:
        asked = {**place._asdict(), "default_output_tokens": 0, "call_id": f"{permit.call_id}+{number}"}
        try:
            await self.admission.admit_elsewhere(permit, WHO, call_of(), **asked)
        except TooMany:
            return False
        return True

    async def turned(self, story: Story, call_id: str) -> Permit | None:
        """Return the permit of a call that was turned to all but the last; None: it was not even admitted."""
        permit = await self.admit(story.first, call_id)
        for number, place in enumerate(story.between if permit else (), 1):
            assert permit is not None
            await self.elsewhere(permit, place, number)
        return permit

    async def spend(self, earlier: Sequence[tuple[Place, Usage]]) -> None:
        for number, (place, usage) in enumerate(earlier):
            permit = await self.admit(place, f"earlier-{number}")
            if permit is not None:
                permit.settle(usage)


class Timed(World):
    """One before a store whose time stands."""

    def __init__(self, timed: TimedStore, rules: Sequence[dict[str, Any]]) -> None:
        super().__init__(config.Limits.model_validate({"plans": {"standard": list(rules)}}), timed.store)
        self._timed = timed

    async def books(self) -> tuple[dict[str, int], dict[Any, int]]:
        """Return what is used of every limit, by its key, and what is booked."""
        used = await self._timed.used(*self.limits.values())
        return dict(zip(self.limits, used, strict=True)), await self._timed.booked()


EXAMPLES = {"memory": 200, "redis": 30, "sentinel": 10, "cluster": 10}
STORIES = st.builds(Story, RULES, EARLIER, PLACE, st.lists(PLACE, max_size=2), PLACE, USAGES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_limit_stands_where_it_would_had_the_call_been_made_there(
    kind: str, request: pytest.FixtureRequest
) -> None:
    @settings(max_examples=EXAMPLES[kind], suppress_health_check=list(HealthCheck))
    @given(STORIES)
    def hold(story: Story) -> None:
        asyncio.run(told(story, lambda: timed_kind(kind, request)))

    hold()


async def told(story: Story, opened: Callable[[], AbstractAsyncContextManager[TimedStore]]) -> None:
    async with opened() as timed:
        direct = Timed(timed, story.rules)
        await direct.spend(story.earlier)
        permit = await direct.admit(story.last, "call")
        fits = permit is not None
        if permit is not None:
            permit.settle(story.usage)
        expected = await direct.books()
    async with opened() as timed:
        world = Timed(timed, story.rules)
        await world.spend(story.earlier)
        before = await world.books()
        permit = await world.turned(story, "in vain")
        assume(permit is not None)
        assert permit is not None
        permit.settle(None)
        assert await world.books() == before
        permit = await world.turned(story, "call")
        assert permit is not None
        assert await world.elsewhere(permit, story.last, 9) is fits
        event(f"answered: {fits}")
        permit.settle(story.usage if fits else None)
        permit.settle(Usage(1000, 1000))
        assert await world.books() == (expected if fits else before)
        assert not world.admission._live


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", [["model"], ["key", "model"]], ids=["everybody's", "the key's"])
async def test_a_limit_that_keeps_a_call_from_a_place_books_nothing_as_refused(
    kind: str, per: list[str], request: pytest.FixtureRequest
) -> None:
    rules = [rule(0, "requests", 1, per=per, window="day"), rule(1, "concurrent", 5, per=["tenant", "model"])]
    async with timed_kind(kind, request) as timed:
        world = Timed(timed, rules)
        await world.spend([(PLACES[2], Usage(1, 1))])
        before = await world.books()
        permit = await world.admit(PLACES[0], "call")
        assert permit is not None
        for number in (1, 1, 2):  # the second as if its answer had been lost
            assert not await world.elsewhere(permit, PLACES[2], number)
        permit.settle(None)
        assert await world.books() == before


LOST: list[tuple[Loss | None, Loss | None, Loss | None]] = [
    ("hang up", "hang up", "hang up"),
    (None, "swallow", None),
    ("swallow", None, None),
    (None, None, "swallow"),
]


@pytest.mark.parametrize("mode", ["local", "allow"])
@pytest.mark.parametrize("lost", LOST, ids=lambda lost: "-".join(map(str, lost)))
async def test_whatever_answers_are_lost_the_call_is_charged_once_and_where_it_was_answered(
    store_server: StoreServer, tmp_path: Path, mode: Literal["local", "allow"], lost: tuple[Loss | None, ...]
) -> None:
    rules = [
        rule(0, "requests", 100, per=["key"], window="day"),
        rule(1, "requests", 100, per=["key", "model"], window="day"),
        rule(2, "tokens", 1000, per=["model"], window="day", count="output"),
        rule(3, "concurrent", 5, per=["key", "model"]),
        rule(4, "tokens", 1000, per=["tenant"], window="month", count="input"),
    ]
    async with proxy_before(store_server.port) as proxy, gateway(proxy.url, mode, rules, tmp_path) as world:
        permit = None
        for number, loss in enumerate(lost):
            if loss is not None and world.store.up:
                proxy.lose(loss)
            if number == 0:
                permit = await world.admission.admit(
                    WHO, call_of(), **PLACES[0]._asdict(), default_output_tokens=0, call_id="call"
                )
            assert permit is not None
            if number == 1:
                await world.elsewhere(permit, PLACES[2], 1)
            if number == 2:
                permit.settle(Usage(7, 3))
        await world.delivered()
        assert await world.used(RedisLevels(store_server.url)) == {
            ("rule-0", "m"): 1,
            ("rule-4", "m"): 7,
            ("rule-1", "n"): 1,
            ("rule-2", "n"): 3,
        }
        booked = {(one.model, one.counter): one.figure async for one in world.store.ledger("acme", TODAY, TODAY)}
        assert booked == {("n", "calls"): 1, ("n", "prompt_tokens"): 7, ("n", "completion_tokens"): 3}
        with store_server.client() as client:
            assert list(client.scan_iter("gw:*:concurrency-*")) == []
        assert not world.admission._live


async def test_where_the_store_is_away_only_then_a_rule_of_the_other_place_may_deny_it(
    own_store_server: StoreServer, tmp_path: Path
) -> None:
    rules = [
        rule(0, "requests", 100, per=["key"], window="day"),
        rule(1, "requests", 100, per=["model"], window="day", models=["n"], on_store_failure="deny"),
    ]
    async with gateway(own_store_server.url, "local", rules, tmp_path) as world:
        permit = await world.admission.admit(
            WHO, call_of(), **PLACES[0]._asdict(), default_output_tokens=0, call_id="call"
        )
        own_store_server.freeze()
        with pytest.raises(LimitsUnavailable):
            await world.elsewhere(permit, PLACES[2], 1)
        assert await world.elsewhere(permit, PLACES[3], 2)  # what applies there is reserved
        permit.settle(Usage(7, 3))
        own_store_server.thaw()
        await world.delivered()
        assert await world.used(RedisLevels(own_store_server.url)) == {("rule-0", "m"): 1}


class Journaled(World):
    """An admission stage before a server, with a journal."""

    async def delivered(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.store.pending or not self.store.up:
                await asyncio.sleep(0.005)

    async def used(self, levels: RedisLevels) -> dict[tuple[str, str], int]:
        """Return what is used, by rule and the first model that it applies to; nothing where nothing is."""
        whose = {
            one.key: (one.rule, place.model)
            for place in reversed(PLACES)
            for one in self.admission.rulebook.applying(WHO, **place._asdict()).limits
        }
        used = await levels.used(list(self.limits.values()))
        return {whose[key]: figure for key, figure in zip(self.limits, used, strict=True) if figure}


@asynccontextmanager
async def gateway(
    url: str, mode: Literal["local", "allow"], rules: list[dict[str, Any]], directory: Path
) -> AsyncIterator[Journaled]:
    observer = Remembering()
    store = RedisStore(
        url,
        CLOCK,
        timeout_s=STORE_TIMEOUT_S,
        lease_s=30,
        retention_s=86_400,
        observer=observer,
        backlog=Journal(directory, CLOCK, dropped=observer.settlement_dropped),
    )
    limits = config.Limits.model_validate(
        {
            "store": url,
            "journal": str(directory),
            "on_store_failure": mode,
            "plans": {"standard": rules},
        }
    )
    world = Journaled(limits, store)
    store.start()
    try:
        await until_asked(lambda: store.renew([reservation("nobody")]))
        connecting = await world.admit(PLACES[0], "connecting")
        assert connecting is not None
        connecting.settle(None)
        await world.delivered()
        yield world
    finally:
        await store.close()
        assert observer.dropped == 0
