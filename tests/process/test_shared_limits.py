"""Several gateway processes on one real store: limits hold in sum, the books are right, and nothing is left behind."""

import asyncio
import itertools
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, Samples
from tests.engines import ScriptedEngine, never
from tests.processes import Processes, Running, until
from tests.store_server import StoreServer
from tests.transcripts import answer, chat, chat_role, chunked, head, http, sse, transcript

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
QUOTA = 10**8


async def two_gateways(
    processes: Processes, store: StoreServer, engines: dict[str, str], *rules: dict[str, Any], **limits: Any
) -> list[Running]:
    """Start two gateways with a model of its own pool before each of `engines`, and a plan of `rules`."""
    processes.token()
    config = [
        processes.config(
            models={name: {"pool": name} for name in engines},
            pools={name: {"replicas": [url]} for name, url in engines.items()},
            limits={"store": store.url, "store_timeout": "5s", "plans": {"standard": list(rules)}, **limits},
        )
        for _ in range(2)
    ]
    return list(await asyncio.gather(*map(processes.serve, config)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_of_a_hundred_calls_at_once_over_two_gateways_exactly_the_limit_is_admitted(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    rules = [
        {"name": "few", "per": ["key"], "requests": 10, "window": "1h"},
        {"name": "tokens", "per": ["key"], "tokens": 350, "window": "1h", "count": "output"},
    ]
    gateways = await two_gateways(processes, store_server, {"tiny": scripted_engine.url}, *rules)
    words = sse(transcript(" a", " b", usage=(3, 2))) if stream else http(answer("chat", "a b", usage=(3, 2)))
    for measure, most, admitted, left in (("requests", 1, 10, range(10)), ("tokens", 60, 5, range(50, 350, 60))):
        token, go, before = processes.token(key=measure), asyncio.Event(), len(scripted_engine.requests)
        for _ in range(admitted):
            scripted_engine.answer(go, words)
        body = HI | {"model": "tiny", "stream": stream, "max_tokens": most}
        posts = [processes.post(gateways[n % 2], CHAT, body, token=token) for n in range(100)]
        calls = [asyncio.ensure_future(post) for post in posts]
        for refused in itertools.islice(asyncio.as_completed(calls), 100 - admitted):
            assert (await refused).status == 429
        go.set()
        replies = [reply for call in calls if (reply := await call).status == 200]
        assert len(replies) == len(scripted_engine.requests) - before == admitted
        assert sorted(int(reply.headers[f"x-ratelimit-remaining-{measure}"]) for reply in replies) == list(left)


async def test_a_killed_gateways_slot_is_free_within_its_lease_and_a_long_stream_keeps_its_own(
    processes: Processes, store_server: StoreServer, scripted_engine: ScriptedEngine
) -> None:
    rule = {"name": "one", "per": ["key"], "concurrent": 1}
    first, second = await two_gateways(processes, store_server, {"tiny": scripted_engine.url}, rule, lease="2500ms")
    token, clock = processes.token(), asyncio.get_running_loop()
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), never)
    headers = {"Authorization": f"Bearer {token}"}
    body = HI | {"model": "tiny", "stream": True}
    async with processes.session.post(first.url + CHAT, json=body, headers=headers) as stream:
        assert stream.status == 200
        began = clock.time()
        while clock.time() < began + 3.5:
            assert (await processes.post(second, CHAT, HI | {"model": "tiny"}, token=token)).status == 429
            await asyncio.sleep(0.1)
        first.send(signal.SIGKILL)
        killed = clock.time()
        assert await first.ended() == -signal.SIGKILL

    async def free() -> bool:
        return (await processes.post(second, CHAT, HI | {"model": "tiny"}, token=token)).status == 200

    await until(free)
    assert clock.time() - killed < 6
    assert await free()


@dataclass
class Tally:
    """What the clients of a run saw: statuses, and how many tokens came on streams that broke."""

    statuses: Counter[int] = field(default_factory=Counter)
    broken_tokens: int = 0
    broken_streams: int = 0


class Client:
    """Calls of every kind, spread over the gateways."""

    def __init__(self, processes: Processes, gateways: list[Running], token: str) -> None:
        self.tally = Tally()
        self._processes = processes
        self._gateways = gateways
        self._token = token
        self._chance = random.Random(7)

    async def whole(self, model: str, **changes: Any) -> None:
        reply = await self._processes.post(self._next(), CHAT, HI | {"model": model} | changes, token=self._token)
        self.tally.statuses[reply.status] += 1

    async def completion(self, model: str, **changes: Any) -> None:
        body = {"model": model, "prompt": ["Hi", "there"], "n": 2, "max_tokens": 9} | changes
        reply = await self._processes.post(self._next(), COMPLETIONS, body, token=self._token)
        self.tally.statuses[reply.status] += 1

    async def stream(
        self, model: str, *, tokens: int, leave_after: int | None = None, gateway: Running | None = None, **changes: Any
    ) -> None:
        """Read a stream, or leave it after so many events."""
        body = HI | {"model": model, "stream": True, "max_tokens": tokens} | changes
        headers = {"Authorization": f"Bearer {self._token}"}
        events: list[bytes] = []
        url = (gateway or self._next()).url + CHAT
        async with self._processes.session.post(url, json=body, headers=headers) as response:
            self.tally.statuses[response.status] += 1
            if response.status != 200:
                return
            while leave_after is None or len(events) < leave_after:
                event = await response.content.readuntil(b"\n\n")
                if not event:
                    break
                events.append(event)
            if leave_after is not None:
                response.close()
                return
        if events[-1] != b"data: [DONE]\n\n":
            assert b'"error"' in events[-1]
            self.tally.broken_streams += 1
            self.tally.broken_tokens += sum(b'"content":"' in event and b'"role"' not in event for event in events)

    def _next(self) -> Running:
        return self._chance.choice(self._gateways)


async def test_after_two_hundred_calls_of_every_kind_the_books_equal_what_the_engines_generated(
    processes: Processes, store_server: StoreServer
) -> None:
    steady, left, doomed = await asyncio.gather(
        processes.engine("steady"),
        processes.engine("left", tokens_per_second=20),
        processes.engine("doomed", tokens_per_second=50),
    )
    rules = [
        {"name": "quota", "per": ["tenant"], "tokens": QUOTA, "window": "month"},
        {"name": "at-once", "per": ["key"], "concurrent": 150},
    ]
    urls = {"steady": steady.url, "left": left.url, "doomed": doomed.url}
    gateways = await two_gateways(processes, store_server, urls, *rules)
    client = Client(processes, gateways, processes.token())
    for gateway in gateways:  # knows from then on what its engine adds to a stream, whatever comes next
        await client.stream("steady", tokens=1, gateway=gateway)
    calls: list[Awaitable[None]] = []
    for number in range(20):
        usage: dict[str, Any] = {"stream_options": {"include_usage": number % 2 == 0}}
        calls += [
            client.stream("steady", tokens=1 + number * 5, **usage),
            client.stream("steady", tokens=8, n=3),
            client.whole("steady", max_tokens=1 + number),
            client.completion("steady"),
            client.whole("steady", temperature=9),
            client.whole("nowhere"),
            client.whole("steady", max_tokens=QUOTA + 1),
            client.whole("steady", max_tokens=40_000),
            client.stream("left", tokens=5000, leave_after=1 + number, **usage),
            client.stream("doomed", tokens=5000, **usage),
        ]
    under_way = [asyncio.ensure_future(call) for call in calls]

    async def streams_open() -> bool:
        return await total(processes, gateways, "gateway_streams_open", model="doomed") == 20

    await until(streams_open)
    doomed.send(signal.SIGKILL)
    await asyncio.gather(*under_way)
    await until(idle(processes, gateways))

    assert client.tally.statuses == {200: 122, 400: 40, 404: 20, 429: 20}
    assert client.tally.broken_streams == 20
    generated = {name: await generation_of(processes, engine) for name, engine in (("steady", steady), ("left", left))}
    # Whatever ended by itself is charged to the token, as is what was relayed of streams that broke.
    assert await charged(processes, gateways, "steady") == generated["steady"]
    assert (await charged(processes, gateways, "doomed"))[1] == client.tally.broken_tokens > 0
    # A client's leaving is seen after what was on its way: at most a few tokens of each stream.
    assert 0 <= generated["left"][1] - (await charged(processes, gateways, "left"))[1] <= 20 * 3
    assert await total(processes, gateways, "gateway_tokens_total", source="estimated") == 0
    await check_the_store(processes, gateways, store_server)
    async with processes.session.get(gateways[1].admin_url + "/admin/usage?group_by=model") as response:
        booked = {row["model"]: (row["calls"], row["refused"]) for row in (await response.json())["data"]}
    # Of `steady` 82 calls were answered, and 20 found too long by the engine.
    assert booked == {"steady": (102, 21), "left": (20, 0), "doomed": (20, 0)}


def idle(processes: Processes, gateways: list[Running]) -> Callable[[], Awaitable[bool]]:
    """Return what tells whether no gateway has anything under way."""

    async def nothing() -> bool:
        gauges = ("gateway_requests_in_flight", "gateway_streams_open", "gateway_replica_in_flight")
        return not any([await total(processes, gateways, gauge) for gauge in gauges])

    return nothing


async def check_the_store(processes: Processes, gateways: list[Running], store: StoreServer) -> None:
    """Check that no slot is held, no call is unsettled, and that the quota has lost what the metrics say was used."""
    with store.client() as client:

        async def settled() -> bool:
            return [key for key in client.scan_iter("gw:*:call:*") if client.get(key) != b"refused"] == []

        await until(settled)
        assert [key for key in client.scan_iter("gw:*") if client.type(key) == b"zset" and client.zcard(key)] == []
        assert [key for key in client.scan_iter("*") if client.ttl(key) < 0] == []
    async with processes.session.get(gateways[0].admin_url + "/admin/usage?group_by=model") as response:
        for row in (await response.json())["data"]:
            assert (row["prompt_tokens"], row["completion_tokens"]) == await charged(processes, gateways, row["model"])
    used = await total(processes, gateways, "gateway_tokens_total", kind="prompt")
    used += await total(processes, gateways, "gateway_tokens_total", kind="completion")
    reply = await processes.post(
        gateways[0], CHAT, HI | {"model": "steady", "max_tokens": QUOTA}, token=processes.token()
    )
    assert reply.status == 429
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) == QUOTA - used


async def total(processes: Processes, gateways: list[Running], name: str, **labels: str) -> float:
    """Return the sum of a metric over the gateways."""
    scrapes: list[Samples] = [await gateway.metrics(processes.session) for gateway in gateways]
    return sum(samples.total(name, **labels) for samples in scrapes)


async def charged(processes: Processes, gateways: list[Running], model: str) -> tuple[float, float]:
    """Return the prompt and completion tokens that were charged for a model."""
    kinds = ("prompt", "completion")
    prompt, completion = [
        await total(processes, gateways, "gateway_tokens_total", model=model, kind=kind) for kind in kinds
    ]
    return prompt, completion


async def generation_of(processes: Processes, engine: Running) -> tuple[float, float]:
    """Return the prompt and generated tokens that an engine counts."""
    samples = await engine.metrics(processes.session)
    return samples.total("vllm:prompt_tokens_total"), samples.total("vllm:generation_tokens_total")
